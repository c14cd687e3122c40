"""The objective gives the published values, and equals a slow numpy reference in value and gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from actors.learner.objective import (
    DecoupledPpo,
    ObjectiveMetrics,
    clipped_surrogate,
    importance_weight,
    log_ratio,
)


def ppo(clip_low=0.2, clip_high=0.28, dual_clip=3.0, cap=5.0, over_cap="mask") -> DecoupledPpo:
    return DecoupledPpo(clip_low, clip_high, dual_clip, cap, over_cap)


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def reference(theta, prox, beh, advantage, objective: DecoupledPpo) -> tuple[list[float], list[float]]:
    """Token by token with plain floats: the losses, and their derivatives by theta worked out by hand."""
    losses, gradients = [], []
    for t, p, b, a in zip(theta, prox, beh, advantage, strict=True):
        bounded_log = min(20.0, max(-20.0, t - p))
        r = math.exp(bounded_log)
        slope = r if abs(t - p) < 20 else 0.0
        low, high = 1 - objective.clip_low, 1 + objective.clip_high
        clipped = min(high, max(low, r))
        if r * a <= clipped * a:
            loss, gradient = -r * a, -slope * a
        else:
            loss, gradient = -clipped * a, 0.0
        if objective.dual_clip is not None and a < 0 and loss > -objective.dual_clip * a:
            loss, gradient = -objective.dual_clip * a, 0.0
        w = math.exp(min(20.0, max(-20.0, p - b)))
        if objective.importance_cap is not None and w > objective.importance_cap:
            w = 0.0 if objective.over_cap == "mask" else objective.importance_cap
        losses.append(w * loss)
        gradients.append(w * gradient)
    return losses, gradients


def test_ppo_gives_the_published_values():
    losses, _ = clipped_surrogate(tensor([0.5, 1, 1.5]), tensor([1, -1, 2]), 0.2, 0.2, None)
    np.testing.assert_allclose(losses, [-0.5, 1, -2.4], rtol=1e-9)
    assert losses.mean().item() == pytest.approx(-0.6333, rel=1e-3)


def test_the_dual_clip_bounds_the_loss_of_a_bad_token():
    losses, clipped = clipped_surrogate(tensor([10, 2, 10]), tensor([-1, -1, 1]), 0.2, 0.28, 3.0)
    np.testing.assert_allclose(losses, [3, 2, -1.28], rtol=1e-9)
    assert clipped.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("cap", "expected", "mean"),
    [(None, [-0.5 * 0.6065, 1.6487, -2.4 * 0.8187], -0.2065), (0.8, [-0.3033, 0.8, -1.92], -0.4744)],
)
def test_truncated_importance_weights_give_the_published_values(cap, expected, mean):
    ratio, log_w = tensor([0.5, 1, 1.5]), tensor([-0.5, 0.5, -0.2])
    prox = tensor([-1, -1, -1])
    losses, *_ = ppo(0.2, 0.2, None, cap, "truncate").token_losses(
        prox + ratio.log(), prox, prox - log_w, tensor([1, -1, 2])
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    assert losses.mean().item() == pytest.approx(mean, rel=1e-3)


DECOUPLED = {
    "theta": tensor([-1, -0.7, -0.2, -3.5]),
    "prox": tensor([-1.2, -0.8, -0.5, -3]),
    "behaviour": tensor([-1, -1, -1, -1]),
    "advantage": tensor([1, -1, 1, -1]),
}


def test_decoupled_ppo_gives_the_published_values():
    losses, *_ = ppo(0.2, 0.2, 3.0, None).token_losses(**DECOUPLED)
    np.testing.assert_allclose(losses, [-0.98248, 1.34986, -1.97847, 0.10827], rtol=1e-4)
    assert losses.mean().item() == pytest.approx(-0.37570, rel=1e-4)


def test_a_masked_token_stays_in_the_denominator():
    loss, sums = ppo(0.2, 0.2, 3.0, 1.6).loss(**DECOUPLED, denominator=4)
    assert loss.item() == pytest.approx(0.11891, rel=1e-4)
    assert sums.over_cap.item() == 1


def test_effective_sample_size_gives_the_published_value():
    prox = tensor([0, 0.5, -0.5, 1]) - 2
    _, sums = ppo().loss(prox, prox, torch.full_like(prox, -2), torch.ones_like(prox), denominator=4)
    assert ObjectiveMetrics.of(sums).effective_sample_size == pytest.approx(0.7774, rel=1e-3)


def test_log_ratios_are_bounded_before_exp():
    assert log_ratio(tensor([0.0, -100.0]), tensor([-100.0, 0.0])).tolist() == [20.0, -20.0]


def test_the_importance_weight_carries_no_gradient():
    prox = tensor([-1.0, -2.0]).requires_grad_()
    used, _, _ = importance_weight(prox, tensor([-1.5, -1.5]), 5.0, "truncate")
    assert not used.requires_grad


def test_mismatch_kl_counts_only_tokens_of_the_current_version():
    prox, beh = tensor([-1.0, -1.0]), tensor([-1.5, -9.0])
    _, sums = ppo().loss(prox, prox, beh, torch.ones_like(prox), denominator=2, current=torch.tensor([True, False]))
    assert ObjectiveMetrics.of(sums).mismatch_kl == pytest.approx(math.exp(0.5) - 0.5 - 1)


def test_mismatch_kl_is_none_when_no_token_is_of_the_current_version():
    prox = tensor([-1.0])
    _, sums = ppo().loss(prox, prox, prox, prox, denominator=1, current=torch.tensor([False]))
    assert ObjectiveMetrics.of(sums).mismatch_kl is None


def test_shares_count_clipped_and_capped_tokens():
    theta, prox = tensor([-1.0, -1.0, -1.0, -1.0]), tensor([-1.0, -2.0, -1.0, -1.0])
    beh = tensor([-1.0, -2.0, -9.0, -1.0])
    _, sums = ppo().loss(theta, prox, beh, torch.ones_like(theta), denominator=4)
    metrics = ObjectiveMetrics.of(sums)
    assert (metrics.clip_share, metrics.over_cap_share) == (0.25, 0.25)


n_tokens = st.shared(st.integers(1, 24), key="n")
logs = n_tokens.flatmap(lambda n: hnp.arrays(np.float64, n, elements=st.floats(-30, 0, width=32)))
advantages = n_tokens.flatmap(lambda n: hnp.arrays(np.float64, n, elements=st.floats(-4, 4, width=32)))
objectives = st.builds(
    ppo,
    clip_low=st.floats(0.01, 0.9),
    clip_high=st.floats(0.01, 1.5),
    dual_clip=st.none() | st.floats(2.6, 10),
    cap=st.none() | st.floats(1, 10),
    over_cap=st.sampled_from(["mask", "truncate"]),
)


def near(spread=1.0):
    """Log-probs close enough that not every ratio hits a bound."""
    return n_tokens.flatmap(lambda n: hnp.arrays(np.float64, n, elements=st.floats(-spread, spread, width=32)))


@settings(max_examples=200, deadline=None)
@given(logs, near(), near(2.5), advantages, objectives)
def test_value_and_gradient_equal_the_reference(prox, theta_off, beh_off, advantage, objective):
    theta = tensor(prox + theta_off).requires_grad_()
    inputs = (tensor(prox), tensor(prox + beh_off), tensor(advantage))
    losses, *_ = objective.token_losses(theta, *inputs)
    losses.sum().backward()
    expected, gradients = reference(*(x.tolist() for x in (theta.detach(), *inputs)), objective)
    np.testing.assert_allclose(losses.detach(), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(theta.grad, gradients, rtol=1e-9, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(logs, logs, logs, advantages, objectives)
def test_no_finite_log_prob_makes_a_loss_that_is_not_finite(theta, prox, beh, advantage, objective):
    losses, *_ = objective.token_losses(tensor(theta * 100), tensor(prox), tensor(beh * 100), tensor(advantage))
    assert torch.isfinite(losses).all()


@settings(max_examples=50, deadline=None)
@given(logs, near(), near(), advantages, st.integers(0, 24))
def test_a_split_into_micro_batches_changes_nothing(prox, theta_off, beh_off, advantage, cut):
    objective, n = ppo(), len(prox)
    columns = [tensor(x) for x in (prox + theta_off, prox, prox + beh_off, advantage)]
    whole, sums = objective.loss(*columns, denominator=n)
    parts = [objective.loss(*(c[piece] for c in columns), denominator=n) for piece in (slice(cut), slice(cut, n))]
    assert whole.item() == pytest.approx(sum(part[0].item() for part in parts), rel=1e-9, abs=1e-12)
    assert ObjectiveMetrics.of(sums).behaviour_kl == pytest.approx(
        ObjectiveMetrics.of(parts[0][1] + parts[1][1]).behaviour_kl, rel=1e-9, abs=1e-12
    )


@settings(max_examples=50, deadline=None)
@given(logs, near(0.5), advantages)
def test_on_the_first_step_the_gradient_is_the_weighted_policy_gradient(prox, beh_off, advantage):
    theta = tensor(prox).requires_grad_()
    beh = tensor(prox + beh_off)
    losses, *_ = ppo().token_losses(theta, theta.detach(), beh, tensor(advantage))
    losses.sum().backward()
    np.testing.assert_allclose(theta.grad, -np.exp(-beh_off) * advantage, rtol=1e-9, atol=1e-12)
