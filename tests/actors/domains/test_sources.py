"""Task sources: the same seed gives the same tasks, and no held-out prompt is ever trained on."""

import subprocess
import sys
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.domains.errors import BadSourceOption, ExhaustedDomain, UnknownSource
from actors.domains.mistakes import plausible_mistake
from actors.domains.registry import open_source, source_names
from actors.domains.split import EVAL_SHARE, split_of

GYM = partial(open_source, "reasoning-gym")
OWN = ("arithmetic", "strings", "retrieval")


def prompt_of(task):
    return task.messages[0].content


@pytest.mark.parametrize("name", source_names())
def test_the_same_seed_gives_the_same_tasks(name):
    first, second = (list(open_source(name).tasks(60, 3, "train")) for _ in range(2))
    assert [task.model_dump() for task in first] == [task.model_dump() for task in second]


@pytest.mark.parametrize("name", source_names())
def test_another_seed_gives_other_tasks_under_other_ids(name):
    source = open_source(name)
    one, other = (list(source.tasks(60, seed, "train")) for seed in (1, 2))
    assert not {task.id for task in one} & {task.id for task in other}
    assert [prompt_of(task) for task in one] != [prompt_of(task) for task in other]


@pytest.mark.parametrize("name", source_names())
def test_a_longer_request_starts_with_the_shorter_one(name):
    source = open_source(name)
    assert list(source.tasks(100, 5, "eval"))[:40] == list(source.tasks(40, 5, "eval"))


def test_no_held_out_prompt_of_the_demo_is_ever_trained_on():
    source = open_source("demo")
    trained = {prompt_of(task) for seed in (1, 2) for task in source.tasks(6000, seed, "train")}
    held_out = {prompt_of(task) for seed in (1, 2) for task in source.tasks(3000, seed, "eval")}
    assert len(held_out) > 2000
    assert not trained & held_out


@given(st.text(min_size=1))
def test_a_prompt_has_one_side(prompt):
    assert split_of(prompt) == split_of(prompt)


def test_about_a_fifth_of_a_problem_space_is_held_out():
    share = sum(split_of(f"prompt {i}") == "eval" for i in range(5000)) / 5000
    assert abs(share - EVAL_SHARE) < 0.03


def test_the_demo_has_two_hundred_different_held_out_prompts_in_each_domain():
    source = open_source("demo")
    tasks = list(source.tasks(200 * len(source.domains), 0, "eval"))
    for domain in source.domains:
        assert len({prompt_of(task) for task in tasks if task.domain == domain}) == 200


def test_the_demo_joins_arithmetic_strings_retrieval_and_ten_reasoning_gym_datasets():
    source = open_source("demo")
    gym = {task.domain for task in source.tasks(60, 0, "train") if task.verifier.kind == "reasoning_gym"}
    assert set(OWN) <= set(source.domains)
    assert len(gym) >= 10


def test_ids_are_unique_within_a_split():
    ids = [task.id for task in open_source("demo").tasks(3000, 0, "train")]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", OWN)
def test_higher_levels_have_longer_prompts(name):
    source = open_source(name)
    lengths = [sum(len(prompt_of(task)) for task in source.tasks(60, 0, "train", level=level)) for level in range(3)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[2]


@pytest.mark.parametrize(
    ("call", "wrong", "says"),
    [
        (lambda: open_source("no-such"), UnknownSource, "use one of demo"),
        (lambda: open_source("demo", name="x"), BadSourceOption, "no option 'name'"),
        (lambda: GYM(name="sudoku"), BadSourceOption, "use one of chain_sum"),
        (lambda: next(open_source("strings").tasks(1, 0, "train", level=9)), BadSourceOption, "use 0 to 2"),
        (lambda: next(open_source("strings").tasks(1, 0, "train", size=9)), BadSourceOption, "no option 'size'"),
        (
            lambda: list(open_source("reasoning-gym", name="leg_counting").tasks(5000, 0, "eval")),
            ExhaustedDomain,
            "only",
        ),
    ],
)
def test_what_a_source_can_not_do_is_one_clear_line(call, wrong, says):
    with pytest.raises(wrong, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_demonstration_without_noise_is_right_and_with_noise_one_is_wrong():
    source, rng = open_source("demo"), Random(0)
    for task in source.tasks(600, 1, "train"):
        assert source.demonstration(task, rng, 0.0) == task.answer
        assert source.demonstration(task, rng, 1.0) != task.answer


@settings(max_examples=200)
@given(st.text(min_size=0, max_size=12), st.integers(0, 1000))
def test_a_mistake_always_differs_from_the_answer(answer, seed):
    assert plausible_mistake(answer, Random(seed)) != answer


def test_naming_the_sources_imports_neither_torch_nor_reasoning_gym():
    code = (
        "import sys; from actors.domains.registry import open_source; open_source('arithmetic'); "
        "print([m for m in ('torch', 'transformers', 'reasoning_gym') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
