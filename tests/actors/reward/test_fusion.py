"""Fusion: scores become one reward, or an error that names what is missing; never a guess."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.reward.fusion import FusionError, fuse
from tests.actors.samples import verdicts

SCORES = st.dictionaries(st.sampled_from(["correct", "format", "length"]), st.floats(-10, 10), min_size=1)


@given(st.floats(0, 1))
def test_without_objectives_the_reward_is_the_pass_rate(rate: float) -> None:
    assert fuse(verdicts("g", [rate])[0], {}) == (rate, {"pass_rate": rate})


@given(SCORES, st.floats(-5, 5))
def test_the_reward_is_the_weighted_sum_of_the_scores(scores: dict[str, float], weight: float) -> None:
    verdict = verdicts("g", [0.5], [{**scores, "unused": 99.0}])[0]
    reward, used = fuse(verdict, dict.fromkeys(scores, weight))
    assert reward == pytest.approx(weight * sum(scores.values()))
    assert used == scores


def test_an_objective_without_a_score_is_named_with_what_there_is() -> None:
    with pytest.raises(FusionError, match=r"rollout g\.0: no score for objective 'style'; it has correct, format"):
        fuse(verdicts("g", [1.0], [{"correct": 1.0, "format": 0.0}])[0], {"style": 1.0})


def test_a_check_that_failed_for_our_reasons_is_never_a_reward() -> None:
    with pytest.raises(FusionError, match="carries no score"):
        fuse(verdicts("g", [None])[0], {})


def test_a_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(FusionError, match="reward inf"):
        fuse(verdicts("g", [1.0], [{"correct": 1e308}])[0], {"correct": 1e308})
