"""The learning rate rises, holds or decays as its schedule says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.learner.schedule import learning_rate


def test_warm_up_rises_linearly_and_reaches_the_peak():
    assert [learning_rate(s, 1.0, "constant", 3, None) for s in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize(("schedule", "middle"), [("linear", 0.5), ("cosine", 0.5)])
def test_a_decay_starts_at_the_peak_passes_half_and_ends_at_zero(schedule, middle):
    rates = [learning_rate(s, 1.0, schedule, 2, 12) for s in (2, 7, 12, 99)]
    assert rates == pytest.approx([1.0, middle, 0.0, 0.0])


def test_cosine_is_above_linear_early_and_below_it_late():
    early, late = ([learning_rate(s, 1.0, name, 0, 100) for name in ("cosine", "linear")] for s in (20, 80))
    assert early[0] > early[1]
    assert late[0] < late[1]


def test_a_decay_without_an_end_is_an_error():
    with pytest.raises(ValueError, match="total_steps"):
        learning_rate(9, 1.0, "linear", 0, None)


@given(st.sampled_from(["constant", "linear", "cosine"]), st.integers(0, 200), st.integers(0, 50))
def test_the_rate_stays_between_zero_and_the_peak(schedule, step, warmup):
    assert 0 <= learning_rate(step, 0.1, schedule, warmup, 100) <= 0.1
