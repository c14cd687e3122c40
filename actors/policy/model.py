"""The policy in memory: a causal language model and its tokenizer, loaded whole from one folder or refused.

Nothing is fetched from a hub, no character is encoded as something else, and what leaves (tensors for a
broadcast, an exported folder) is complete: a tied weight travels once, a folder appears by one rename.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

DtypeName = Literal["float32", "bfloat16", "auto"]
_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


class PolicyError(ValueError):
    """A folder or a set of tensors that is not the policy it should be; one line that names it."""


class PromptEncodingError(PolicyError):
    """The tokenizer has no token for a character of the prompt."""


@dataclass
class Policy:
    """A causal language model with its tokenizer.

    ``context_length`` is in tokens, prompt and response together. ``stop_ids`` end a response; ``eos_id`` is the
    one that training appends. ``folder`` is where it was loaded from.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    folder: Path
    context_length: int
    eos_id: int
    stop_ids: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype
    _encodable: set[str] = field(default_factory=set, repr=False)

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding: every id the model knows is below it."""
        return _embedding_rows(self.model)

    def encode(self, messages: Sequence[Mapping[str, str]]) -> npt.NDArray[np.int32]:
        """Return the prompt's token ids, shape (p,), with the generation prompt.

        ``messages`` are mappings with ``role`` and ``content``. The tokenizer's chat template is used if it has
        one; otherwise the contents are concatenated as they are.

        Raises:
            PromptEncodingError: a character has no token; the message names it.
        """
        contents = [message["content"] for message in messages]
        for content in contents:
            self._refuse_unknown(content)
        if self.tokenizer.chat_template:
            ids = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=True, return_dict=False
            )
        else:
            ids = self.tokenizer.encode("".join(contents), add_special_tokens=False)
        return np.asarray(ids, dtype=np.int32)

    def encode_response(self, text: str, end: bool = True) -> npt.NDArray[np.int32]:
        """Return the ids of a demonstrated response, shape (n,), closed by ``eos_id`` unless ``end`` is false.

        Raises:
            PromptEncodingError: a character has no token.
        """
        self._refuse_unknown(text)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return np.asarray([*ids, self.eos_id] if end else ids, dtype=np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ``ids`` without special tokens."""
        return str(self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=True))

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that make the policy, by name in a fixed order; tied ones once. They share memory."""
        tensors: dict[str, Tensor] = {}
        seen: set[tuple[int, tuple[int, ...]]] = set()
        for name, tensor in self.model.state_dict().items():
            identity = (tensor.data_ptr(), tuple(tensor.shape))
            if tensor.numel() == 0 or identity not in seen:
                seen.add(identity)
                tensors[name] = tensor
        return tensors

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy ``tensors`` into the model, in place, so that optimisers and tied weights keep their storage.

        Raises:
            PolicyError: a tensor is missing, unknown or has another shape. Then nothing has been copied.
        """
        own = self.named_tensors()
        for name in own.keys() - tensors.keys():
            raise PolicyError(f"tensor {name} is missing: the policy needs all of its {len(own)}")
        for name, tensor in tensors.items():
            if name not in own:
                raise PolicyError(f"tensor {name} is unknown to this policy ({self.model.config.model_type})")
            if tensor.shape != own[name].shape:
                raise PolicyError(f"tensor {name} has shape {list(tensor.shape)}, not {list(own[name].shape)}")
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(tensor)

    def signature(self) -> dict[str, str]:
        """Return digests that two policies share exactly if the tensors and ids of one fit the other."""
        shapes = sorted((name, list(tensor.shape)) for name, tensor in self.named_tensors().items())
        vocabulary = sorted(self.tokenizer.get_vocab().items())
        return {
            "architecture": str(self.model.config.model_type),
            "tensors": hashlib.sha256(repr(shapes).encode()).hexdigest(),
            "vocabulary": hashlib.sha256(repr(vocabulary).encode()).hexdigest(),
        }

    def export(self, folder: Path) -> None:
        """Save a folder that transformers loads; it appears whole, by a rename.

        An existing model folder is replaced.

        Raises:
            PolicyError: ``folder`` exists and is neither empty nor a model folder.
        """
        folder = Path(folder)
        if folder.exists() and not _is_replaceable(folder):
            raise PolicyError(f"{folder} exists and is not a model folder: it is not overwritten")
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        try:
            self.model.save_pretrained(fresh)
            self.tokenizer.save_pretrained(fresh)
            for path in fresh.iterdir():
                _flush(path)
            _swap(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _refuse_unknown(self, text: str) -> None:
        """Raise for a character without a token. Characters that were seen once are not looked up again."""
        new = set(text) - self._encodable
        if not new:
            return
        unknown = self.tokenizer.unk_token_id
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if unknown is None or unknown in ids:
            for character in sorted(new):
                alone = self.tokenizer.encode(character, add_special_tokens=False)
                dropped = not alone and not character.isspace()
                if dropped or (unknown is not None and unknown in alone):
                    at = text.index(character)
                    raise PromptEncodingError(
                        f"the tokenizer in {self.folder} has no token for {character!r} "
                        f"(U+{ord(character):04X}, at character {at})"
                    )
        self._encodable |= new


def choose_device(device: str) -> torch.device:
    """Return the device named; ``auto`` is CUDA where there is a GPU, else the CPU.

    Raises:
        PolicyError: the name is no device, or CUDA is asked for and absent.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise PolicyError(f"device {device!r} is unknown: use auto, cpu, cuda or cuda:N") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise PolicyError(f"device {device!r} is not available: torch sees no CUDA GPU (use auto or cpu)")
    return chosen


def load_policy(folder: Path | str, device: str = "auto", dtype: DtypeName = "float32") -> Policy:
    """Load a policy from a Hugging Face folder; never from the network. It is in evaluation mode (no dropout).

    ``dtype`` ``auto`` keeps what the folder was saved in.

    Raises:
        PolicyError: the folder is missing, is no model folder, lacks weights or a tokenizer, can not be read, or
            its tokenizer has more ids than the model.
    """
    folder = Path(folder)
    _check_folder(folder)
    target = choose_device(device)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise PolicyError(f"{folder}: the tokenizer can not be loaded: {_first_line(error)}") from error
    factory: Any = AutoModelForCausalLM
    saved_as: Any = dtype if dtype == "auto" else getattr(torch, dtype)
    try:
        model, loading = factory.from_pretrained(
            folder, local_files_only=True, dtype=saved_as, output_loading_info=True
        )
    except Exception as error:
        raise PolicyError(f"{folder}: the model can not be loaded: {_first_line(error)}") from error
    if loading["missing_keys"]:
        raise PolicyError(f"{folder}: the weights lack {sorted(loading['missing_keys'])[0]}")
    model.to(target).eval()
    return wrap_policy(model, tokenizer, folder)


def wrap_policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> Policy:
    """Return the policy made of a model and a tokenizer that are in memory already.

    Raises:
        PolicyError: the tokenizer has more ids than the model, or no end-of-sequence token.
    """
    rows = _embedding_rows(model)
    n_ids = max(tokenizer.get_vocab().values(), default=-1) + 1
    if n_ids > rows:
        raise PolicyError(
            f"{folder}: the tokenizer has {n_ids} ids but the model only {rows}: they do not belong together"
        )
    stops = _stop_ids(model, tokenizer)
    if not stops:
        raise PolicyError(f"{folder}: neither the tokenizer nor the model names an end-of-sequence token")
    parameter = next(model.parameters())
    return Policy(
        model=model,
        tokenizer=tokenizer,
        folder=Path(folder),
        context_length=_context_length(model, tokenizer),
        eos_id=stops[0],
        stop_ids=stops,
        device=parameter.device,
        dtype=parameter.dtype,
    )


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        raise PolicyError(f"model folder {folder} does not exist")
    if not folder.is_dir():
        raise PolicyError(f"{folder} is a file: a model is a folder with config.json, weights and a tokenizer")
    if not (folder / "config.json").is_file():
        raise PolicyError(f"{folder} is not a model folder: it has no config.json")
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHT_PATTERNS):
        raise PolicyError(f"{folder} has no weights: expected *.safetensors or pytorch_model*.bin")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise PolicyError(f"{folder} has no tokenizer: expected tokenizer.json beside config.json")


def _embedding_rows(model: PreTrainedModel) -> int:
    embedding: Any = model.get_input_embeddings()
    return int(embedding.weight.shape[0])


def _stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokenizer's end of sequence first, then those of the generation config."""
    named: list[Any] = [tokenizer.eos_token_id]
    configured = getattr(model.generation_config, "eos_token_id", None)
    if configured is None:
        configured = getattr(model.config, "eos_token_id", None)
    named += configured if isinstance(configured, list | tuple) else [configured]
    return tuple(dict.fromkeys(int(i) for i in named if i is not None))


def _context_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(positions if positions else min(tokenizer.model_max_length, 1 << 20))


def _is_replaceable(folder: Path) -> bool:
    return folder.is_dir() and ((folder / "config.json").is_file() or not any(folder.iterdir()))


def _swap(fresh: Path, folder: Path) -> None:
    """Put ``fresh`` in the place of ``folder``; what stood there is removed afterwards."""
    old = folder.with_name(f"{fresh.name}.old")
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
