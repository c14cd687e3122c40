"""A run is done at its goal with the last evaluation in, or when a time limit has passed."""

from __future__ import annotations

from runtime.facts import Facts
from runtime.runfile import run_class
from runtime.stoprule import Phase, StopRule
from tests.runtime.sample_run import evaluation, step


def rule(**changes) -> StopRule:
    tables = {
        "run": {"name": "r", "max_steps": 10, "final_evaluation_s": 60.0, **changes.pop("run", {})},
        "policy": {"path": "/p"},
        "domains": {
            "sums": {"source": {"name": "arithmetic"}},
            "mine": {"files": ("a.jsonl",)},
        },
        **changes,
    }
    return StopRule(run_class().model_validate(tables))


def at(version: int, *evaluations) -> Facts:
    facts = Facts()
    facts.on(step(version))
    for record in evaluations:
        facts.on(record)
    return facts


def test_a_run_trains_until_its_last_version():
    assert rule().phase(at(9), 1.0) is Phase.TRAINING


def test_at_the_last_version_only_the_evaluation_is_awaited():
    assert rule().phase(at(10), 1.0) is Phase.EVALUATING


def test_a_partial_evaluation_or_one_of_older_weights_does_not_end_a_run():
    facts = at(10, evaluation("sums", 10, 0.5, 0.5, full=False), evaluation("sums", 9, 0.5, 0.5))
    assert rule().phase(facts, 1.0) is Phase.EVALUATING


def test_the_full_evaluation_of_the_last_version_ends_a_run():
    done = rule()
    assert done.phase(at(10, evaluation("sums", 10, 0.5, 0.5)), 1.0) is Phase.DONE
    assert done.because == "weight version 10 is reached and evaluated"


def test_a_domain_that_has_held_out_tasks_after_all_is_awaited():
    facts = at(10, evaluation("sums", 10, 0.5, 0.5), evaluation("mine", 0, 0.1, 0.1))
    assert rule().phase(facts, 1.0) is Phase.EVALUATING


def test_an_evaluation_that_does_not_come_is_not_awaited_for_ever():
    late = rule()
    assert late.phase(at(10), 100.0) is Phase.EVALUATING
    assert late.phase(at(10), 159.0) is Phase.EVALUATING
    assert late.phase(at(10), 160.0) is Phase.DONE
    assert "did not come within 60 s" in late.because


def test_without_evaluators_the_last_version_is_the_end():
    assert rule(evaluator={"count": 0}).phase(at(10), 1.0) is Phase.DONE


def test_without_a_goal_a_run_goes_on():
    assert rule(run={"max_steps": 0}).phase(at(1_000_000), 1e9) is Phase.TRAINING


def test_a_time_limit_ends_a_run_anywhere():
    limited = rule(run={"time_limit_s": 30.0})
    assert limited.phase(at(3), 29.9) is Phase.TRAINING
    assert limited.phase(at(3), 30.0) is Phase.DONE
    assert limited.because == "the time limit of 30 s has passed"
