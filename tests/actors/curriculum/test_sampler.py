"""The uniform sampler: exact shares, every task once per pass, and a restart that nobody notices."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.curriculum.sampler import UniformSampler

WEIGHTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9).map(float), min_size=1)


def sampler(weights: dict[str, float], tasks: int = 3, seed: int = 0) -> UniformSampler:
    made = UniformSampler(weights, seed)
    for at, domain in enumerate(sorted(weights)):
        for i in range(tasks):
            made.add(domain, 1000 * at + i + 1)
    return made


def drawn(made: UniformSampler, n: int) -> list[tuple[str, int]]:
    found = [made.draw() for _ in range(n)]
    assert None not in found
    return found  # type: ignore[return-value]


@given(WEIGHTS, st.integers(1, 4))
def test_over_a_whole_cycle_every_domain_gets_exactly_its_share(weights: dict[str, float], cycles: int) -> None:
    total = int(sum(weights.values()))
    found = Counter(domain for domain, _ in drawn(sampler(weights), cycles * total))
    assert found == {domain: cycles * int(weight) for domain, weight in weights.items()}


@given(WEIGHTS, st.integers(1, 200))
def test_at_any_time_a_domain_is_less_than_one_cycle_of_others_from_its_share(
    weights: dict[str, float], n: int
) -> None:
    total = sum(weights.values())
    found = Counter(domain for domain, _ in drawn(sampler(weights), n))
    for domain, weight in weights.items():
        assert abs(found[domain] - n * weight / total) < len(weights)


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 99))
def test_every_task_comes_once_per_pass(tasks: int, passes: int, seed: int) -> None:
    made = sampler({"a": 1.0}, tasks, seed)
    for _ in range(passes):
        assert sorted(seq for _, seq in drawn(made, tasks)) == list(range(1, tasks + 1))


@given(WEIGHTS, st.integers(1, 20), st.integers(0, 120), st.integers(0, 99))
def test_after_a_restart_the_draws_go_on_as_if_there_had_been_none(
    weights: dict[str, float], tasks: int, n: int, seed: int
) -> None:
    without = sampler(weights, tasks, seed)
    drawn(without, n)
    state = json.loads(json.dumps(without.to_json()))
    restarted = sampler(weights, tasks, seed)
    restarted.restore(state)
    assert drawn(restarted, 50) == drawn(without, 50)


@given(st.integers(1, 20), st.integers(0, 19), st.integers(1, 5))
def test_tasks_that_come_during_a_pass_join_the_next_one(tasks: int, at: int, more: int) -> None:
    made = sampler({"a": 1.0}, tasks)
    at %= tasks
    first = drawn(made, at) if at else []
    for i in range(more):
        made.add("a", 500 + i)
    if at:
        first += drawn(made, tasks - at)
        assert sorted(seq for _, seq in first) == list(range(1, tasks + 1))
    following = {seq for _, seq in drawn(made, tasks + more)}
    assert following == {*range(1, tasks + 1), *(500 + i for i in range(more))}


@given(st.integers(1, 20), st.integers(0, 60), st.integers(1, 5))
def test_tasks_that_came_while_it_was_down_join_the_next_pass_too(tasks: int, n: int, more: int) -> None:
    without = sampler({"a": 1.0}, tasks)
    drawn(without, n)
    restarted = sampler({"a": 1.0}, tasks)
    for i in range(more):
        without.add("a", 500 + i)
        restarted.add("a", 500 + i)
    restarted.restore(sampler_state := without.to_json())
    assert drawn(restarted, 50) == drawn(without, 50), sampler_state


def test_another_seed_is_another_order() -> None:
    assert drawn(sampler({"a": 1.0}, 30, 0), 30) != drawn(sampler({"a": 1.0}, 30, 1), 30)


def test_a_domain_without_tasks_is_passed_over_and_saves_up_nothing() -> None:
    made = UniformSampler({"a": 1.0, "b": 1.0}, 0)
    made.add("a", 1)
    assert {domain for domain, _ in drawn(made, 20)} == {"a"}
    made.add("b", 2)
    assert Counter(domain for domain, _ in drawn(made, 10)) == {"a": 5, "b": 5}


def test_tasks_of_a_domain_that_the_run_does_not_have_or_that_weighs_nothing_are_refused() -> None:
    made = UniformSampler({"a": 1.0, "b": 0.0}, 0)
    assert [made.add(domain, 1) for domain in ("a", "b", "c")] == [True, False, False]


def test_without_tasks_nothing_is_drawn() -> None:
    assert UniformSampler({"a": 1.0}, 0).draw() is None


@pytest.mark.parametrize("n_order", [4, 10**6])
def test_a_state_that_knows_more_tasks_than_there_are_starts_the_domain_afresh(n_order: int) -> None:
    made = sampler({"a": 1.0}, 3)
    made.restore({"a": [0.0, 7, 2, n_order], "gone": [0.0, 1, 1, 1]})
    assert sorted(seq for _, seq in drawn(made, 3)) == [1, 2, 3]


def test_a_domain_whose_tasks_are_all_refused_is_passed_over_until_it_gets_another():
    sampler = UniformSampler({"a": 1.0, "b": 1.0}, seed=0)
    for seq in (1, 2):
        sampler.add("a", seq)
        sampler.refuse("a", seq)
    assert sampler.draw() is None
    sampler.add("b", 3)
    assert {sampler.draw() for _ in range(4)} == {("b", 3)}
    sampler.add("a", 4)
    assert {sampler.draw() for _ in range(6)} == {("b", 3), ("a", 4)}
    sampler.readmit("a", 1)
    assert {sampler.draw() for _ in range(12)} == {("b", 3), ("a", 4), ("a", 1)}
