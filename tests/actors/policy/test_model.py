"""A policy loads whole or is refused in one line; its prompts, tensors and exports are exact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from actors.policy.model import Policy, PolicyError, PromptEncodingError, choose_device, load_policy, wrap_policy
from actors.policy.tiny import tiny_tokenizer


def write_policy(folder: Path, *, tied: bool = False, rows: int | None = None) -> Path:
    tokenizer = tiny_tokenizer(["What is "])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=rows or len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64, tie_word_embeddings=tied, eos_token_id=1, pad_token_id=0,
        bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_policy(tmp_path_factory.mktemp("policy") / "tiny")


@pytest.fixture
def policy(folder) -> Policy:
    return load_policy(folder, device="cpu")


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_a_folder_loads_with_its_context_and_stop_tokens(policy):
    assert (policy.context_length, policy.eos_id, policy.stop_ids) == (64, 1, (1,))
    assert policy.dtype == torch.float32
    assert not policy.model.training


def test_stop_tokens_of_the_generation_config_join_the_tokenizers(copy):
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7]}))
    assert load_policy(copy, "cpu").stop_ids == (1, 7)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(PolicyError, match=r"nowhere does not exist"):
        load_policy(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        (["config.json"], "no config.json"),
        (["model.safetensors"], "no weights"),
        (["tokenizer.json", "tokenizer_config.json"], "no tokenizer"),
    ],
)
def test_a_folder_that_lacks_a_part_is_refused_with_the_part_named(copy, removed, said):
    for name in removed:
        (copy / name).unlink()
    with pytest.raises(PolicyError, match=said) as caught:
        load_policy(copy)
    assert "\n" not in str(caught.value)


def test_truncated_weights_are_refused(copy):
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(PolicyError, match="can not be loaded"):
        load_policy(copy)


def test_weights_without_a_layer_are_refused_and_not_made_up(copy):
    config = json.loads((copy / "config.json").read_text())
    config["num_hidden_layers"] = 3
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(PolicyError, match=r"the weights lack model\.layers\.2"):
        load_policy(copy)


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tmp_path):
    with pytest.raises(PolicyError, match="do not belong together"):
        load_policy(write_policy(tmp_path / "small", rows=20))


def test_an_unknown_device_is_refused():
    with pytest.raises(PolicyError, match="use auto, cpu"):
        choose_device("gpu7")


def test_without_a_chat_template_the_contents_are_concatenated(policy):
    ids = policy.encode([{"role": "system", "content": "ab"}, {"role": "user", "content": "What is 1?"}])
    assert ids.dtype == np.int32
    assert ids.tolist() == policy.tokenizer.encode("abWhat is 1?", add_special_tokens=False)


def test_a_chat_template_is_used_with_its_generation_prompt(policy):
    policy.tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    assert policy.decode(policy.encode(user("hi"))) == "[user]hi>"


def test_a_character_without_a_token_is_named_with_its_place(policy):
    with pytest.raises(PromptEncodingError, match=r"'é' \(U\+00E9, at character 4\)"):
        policy.encode(user("caf" + "fé"))


def test_a_character_stays_refused_after_it_was_refused_once(policy):
    for _ in range(2):
        with pytest.raises(PromptEncodingError):
            policy.encode(user("aé"))


def test_a_response_ends_with_the_stop_token(policy):
    ids = policy.encode_response("42")
    assert ids[-1] == policy.eos_id
    assert policy.decode(ids) == "42"


def test_tied_weights_travel_once_and_stay_tied_after_loading(tmp_path):
    policy = load_policy(write_policy(tmp_path / "tied", tied=True), "cpu")
    tensors = policy.named_tensors()
    assert "model.embed_tokens.weight" in tensors
    assert "lm_head.weight" not in tensors
    policy.load_tensors({name: tensor + 1 for name, tensor in tensors.items()})
    assert policy.model.lm_head.weight.data_ptr() == policy.model.model.embed_tokens.weight.data_ptr()


def test_named_tensors_carry_the_whole_policy_into_another(folder, policy):
    other = load_policy(folder, "cpu")
    with torch.no_grad():
        for tensor in policy.named_tensors().values():
            tensor.mul_(1.5)
    other.load_tensors(policy.named_tensors())
    ids = torch.tensor([[5, 9, 12]])
    assert torch.equal(other.model(ids).logits, policy.model(ids).logits)


@pytest.mark.parametrize("fault", ["missing", "unknown", "shape"])
def test_tensors_that_do_not_fit_are_refused_and_nothing_is_copied(policy, fault):
    before = {name: tensor.clone() for name, tensor in policy.named_tensors().items()}
    tensors = {name: tensor + 1 for name, tensor in before.items()}
    if fault == "missing":
        del tensors["lm_head.weight"]
    elif fault == "unknown":
        tensors["stray"] = torch.zeros(1)
    else:
        tensors["model.norm.weight"] = torch.zeros(3)
    with pytest.raises(PolicyError, match={"missing": "lm_head", "unknown": "stray", "shape": "norm"}[fault]):
        policy.load_tensors(tensors)
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.named_tensors().items())


def test_an_export_is_a_folder_that_transformers_loads(policy, tmp_path):
    policy.export(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = torch.tensor([tokenizer.encode("What is 2?", add_special_tokens=False)])
    assert torch.equal(model(ids).logits, policy.model(ids).logits)


def test_an_export_replaces_an_older_one_and_leaves_nothing_beside_it(policy, tmp_path):
    policy.export(tmp_path / "out")
    policy.export(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_export_does_not_overwrite_what_is_not_a_model(policy, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(PolicyError, match="not overwritten"):
        policy.export(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_model_without_an_end_token_is_refused(policy):
    policy.tokenizer.eos_token = None
    policy.model.config.eos_token_id = None
    policy.model.generation_config.eos_token_id = None
    with pytest.raises(PolicyError, match="end-of-sequence"):
        wrap_policy(policy.model, policy.tokenizer, policy.folder)
