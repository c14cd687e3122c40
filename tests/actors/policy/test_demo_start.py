"""The demo's shipped start policy: small, readable by transformers, skilled in every domain, and made by its recipe."""

import tomllib
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.domains.registry import open_procedural, phrases_of
from actors.learner.sft_config import SftConfig
from actors.policy.tiny import tiny_tokenizer

DEMO = Path(__file__).parents[3] / "examples" / "demo"
START = DEMO / "start"


@pytest.fixture(scope="module")
def right_answers():
    """Domain to how many of twelve held-out tasks greedy decoding solves, answers compared as text."""
    torch.set_num_threads(1)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(START), AutoTokenizer.from_pretrained(START)
    source = open_procedural("demo")
    tasks = list(source.tasks(12 * len(source.domains), 99, "eval"))
    prompts = tokenizer([task.messages[0].content for task in tasks], return_tensors="pt", padding=True)
    made = model.generate(**prompts, max_new_tokens=16, do_sample=False)[:, prompts.input_ids.shape[1] :]
    solved = dict.fromkeys(source.domains, 0)
    for task, answer in zip(tasks, tokenizer.batch_decode(made, skip_special_tokens=True), strict=True):
        solved[task.domain] += answer == task.answer
    return solved


def test_it_is_at_most_four_megabytes():
    assert sum(file.stat().st_size for file in START.iterdir()) <= 4 << 20


def test_it_can_do_something_in_every_domain_and_most_on_the_whole(right_answers):
    assert all(count >= 2 for count in right_answers.values()), right_answers
    assert sum(right_answers.values()) > 0.65 * 12 * len(right_answers), right_answers


def test_its_tokenizer_is_the_one_that_the_domains_ask_for():
    shipped = AutoTokenizer.from_pretrained(START)
    assert shipped.get_vocab() == tiny_tokenizer(phrases_of("demo")).get_vocab()


def test_its_recipe_is_valid_and_ends_with_a_noisy_demonstrator():
    config = SftConfig.model_validate(tomllib.loads((DEMO / "sft.toml").read_text()))
    (clean, first), (noisy, last) = config.plan()
    assert clean + noisy == config.total_steps
    assert "noise" not in first
    assert last["noise"] == 0.5
    assert set(config.options["shares"]) <= set(open_procedural("demo").domains)
