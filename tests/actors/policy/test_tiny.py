"""The tiny policy: transformers loads it, its tokenizer loses nothing, and the same seed makes the same weights."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.domains.registry import open_source, phrases_of
from actors.policy.tiny import CHARACTERS, MAX_IDS, tiny_model, tiny_tokenizer, write_tiny_policy

TOKENIZER = tiny_tokenizer(("Compute ", "Compute the ", ", "))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_policy(path, seed=3)
    return path


def test_transformers_loads_model_and_tokenizer(folder):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("Compute 3*4+5=", return_tensors="pt").input_ids
    assert model(ids).logits.shape == (1, 7, len(tokenizer))
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.config.pad_token_id == tokenizer.pad_token_id


def test_it_has_about_a_million_parameters(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert 850_000 < sum(p.numel() for p in model.parameters()) < 1_200_000
    assert sum(f.stat().st_size for f in folder.iterdir()) < 4_500_000


@given(st.text(alphabet=CHARACTERS))
def test_any_printable_text_comes_back_as_it_was(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.text(alphabet=st.characters(exclude_characters=CHARACTERS, exclude_categories=["Cs"]), min_size=1))
def test_every_unknown_character_becomes_one_unknown_token(text):
    assert TOKENIZER.encode("a" + text) == [TOKENIZER.encode("a")[0], *[TOKENIZER.unk_token_id] * len(text)]


def test_the_longest_phrase_wins():
    assert len(TOKENIZER.encode("Compute the Compute , x")) == 4


def test_a_saved_tokenizer_encodes_as_before(folder):
    tokenizer, before = AutoTokenizer.from_pretrained(folder), tiny_tokenizer(phrases_of("demo"))
    for task in open_source("demo").tasks(150, 0, "train"):
        text = task.messages[0].content + task.answer
        assert tokenizer.encode(text) == before.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_demo_prompts_are_short_and_all_known(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = [tokenizer.encode(task.messages[0].content) for task in open_source("demo").tasks(600, 0, "train")]
    assert len(tokenizer) <= MAX_IDS
    assert not any(tokenizer.unk_token_id in ids for ids in encoded)
    assert sum(map(len, encoded)) / len(encoded) < 16


def test_the_same_seed_makes_the_same_weights_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    one, same, other = (tiny_model(120, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


def test_too_many_phrases_are_refused():
    with pytest.raises(ValueError, match="leave out"):
        tiny_tokenizer(f"phrase {i}" for i in range(200))
