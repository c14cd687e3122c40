"""Group advantages: the published values, and the rules that hold for any rewards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from actors.reward.advantage import ESTIMATORS, RewardsError, dr_grpo, grpo, has_signal, rloo

rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=32)
estimators = st.sampled_from(sorted(ESTIMATORS))


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (grpo, [1.5, -0.5, -0.5, -0.5]),
        (dr_grpo, [0.75, -0.25, -0.25, -0.25]),
        (rloo, [1, -1 / 3, -1 / 3, -1 / 3]),
    ],
)
def test_the_published_values_come_out(estimator, expected):
    np.testing.assert_allclose(estimator([1, 0, 0, 0]), expected, rtol=1e-5)


@given(estimators, st.floats(-1e6, 1e6), st.integers(1, 32))
def test_equal_rewards_give_exactly_no_signal(name, reward, n):
    assert not has_signal([reward] * n)
    assert not ESTIMATORS[name]([reward] * n).any()


@given(estimators, rewards)
def test_advantages_of_a_group_sum_to_zero(name, group):
    advantages = ESTIMATORS[name](group)
    assert abs(advantages.sum()) <= 1e-9 * max(1.0, np.abs(advantages).sum()) + 1e-8


@given(estimators, rewards)
def test_a_better_sample_never_has_a_smaller_advantage(name, group):
    advantages = ESTIMATORS[name](group)
    order = np.argsort(group, kind="stable")
    assert (np.diff(advantages[order]) >= -1e-9).all()


@given(rewards, st.floats(0.1, 10), st.floats(-5, 5))
def test_grpo_does_not_care_for_scale_and_offset(group, scale, offset):
    assume(np.std(group) > 0.01)
    np.testing.assert_allclose(grpo(np.array(group) * scale + offset), grpo(group), rtol=2e-3, atol=1e-6)


@given(rewards)
def test_rloo_is_dr_grpo_times_n_over_n_minus_one(group):
    n = len(group)
    np.testing.assert_allclose(rloo(group), dr_grpo(group) * n / (n - 1), rtol=1e-6, atol=1e-9)


@given(rewards)
def test_grpo_equals_a_loop_written_out(group):
    assume(has_signal(group))
    mean = sum(group) / len(group)
    std = (sum((r - mean) ** 2 for r in group) / (len(group) - 1)) ** 0.5
    np.testing.assert_allclose(grpo(group), [(r - mean) / (std + 1e-6) for r in group], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("bad", [[], [1.0, float("nan")], [float("inf"), 0.0], [[1.0, 0.0]]])
@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_rewards_that_are_no_group_are_refused(name, bad):
    with pytest.raises(RewardsError):
        ESTIMATORS[name](bad)
