"""Answers: every domain's own answer is what an independent reading of the prompt gives."""

import re
from random import Random

import pytest

from actors.domains.gym import SIZINGS
from actors.domains.registry import open_source

EXPRESSION = re.compile(r"(\d+)([+*-])(\d+)")


def tasks_of(source, level, **options):
    return list(open_source(source, **options).tasks(200, 11, "train", level=level))


@pytest.mark.parametrize("level", range(3))
def test_arithmetic_answers_are_the_expressions_values(level):
    for task in tasks_of("arithmetic", level):
        a, sign, b = EXPRESSION.search(task.messages[0].content).groups()
        assert int(task.answer) == {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign](int(a), int(b))


@pytest.mark.parametrize("level", range(3))
def test_string_answers_keep_only_letters_of_the_word(level):
    for task in tasks_of("strings", level):
        word = task.metadata["word"]
        assert task.answer
        assert set(task.answer.lower()) <= set(word)
        if task.metadata["operation"] == "Reverse":
            assert task.answer == "".join(reversed(word))


@pytest.mark.parametrize("level", range(3))
def test_retrieval_answers_stand_beside_their_keys(level):
    for task in tasks_of("retrieval", level):
        pairs = dict(re.findall(r"([a-z])(\d+)(?= |\n)", task.messages[0].content))
        queries = re.search(r"look up (\w+):", task.messages[0].content).group(1)
        assert task.answer == "".join(key + pairs[key] for key in queries)


@pytest.mark.parametrize("name", SIZINGS)
@pytest.mark.parametrize("level", range(2))
def test_reasoning_gym_gives_full_marks_to_its_own_answer_rebuilt_from_the_task(name, level):
    import reasoning_gym

    score = reasoning_gym.get_score_answer_fn(name)
    for task in tasks_of("reasoning-gym", level, name=name)[:40]:
        options = type(task).model_validate_json(task.model_dump_json()).verifier.options
        entry = {"question": task.messages[0].content, "answer": options["answer"], "metadata": options["metadata"]}
        assert score(task.answer, entry) == 1.0
        assert score("~", entry) < 0.1


@pytest.mark.parametrize("name", SIZINGS)
def test_a_mistaken_demonstration_is_seldom_fully_right(name):
    import reasoning_gym

    source, score, rng = open_source("reasoning-gym", name=name), reasoning_gym.get_score_answer_fn(name), Random(0)
    right = 0
    for task in source.tasks(100, 1, "train"):
        entry = {"question": "", "answer": task.answer, "metadata": task.verifier.options["metadata"]}
        right += score(source.demonstration(task, rng, 1.0), entry) >= 1.0
    assert right < 20
