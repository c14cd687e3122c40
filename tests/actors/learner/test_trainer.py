"""A step learns, ignores how its batch is cut, and refuses what it must not train on."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from actors.learner.config import LearnerConfig
from actors.learner.sample import SampleError, TrainSample
from actors.learner.trainer import SkipReason, Trainer
from actors.policy.model import PolicyError


def trainer(policy, **settings) -> Trainer:
    return Trainer(policy, LearnerConfig.model_validate({"warmup_steps": 0, **settings}), seed=0)


def weights(policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.named_tensors().items()}


def same(policy, before) -> bool:
    return all(torch.equal(tensor, before[name]) for name, tensor in policy.named_tensors().items())


def test_a_step_changes_the_weights_and_the_version(policy, make_samples):
    learner, before = trainer(policy), weights(policy)
    result = learner.step(make_samples(policy, 8))
    assert result.stepped
    assert (result.version, result.optimizer_steps) == (1, 1)
    assert not same(policy, before)


def test_good_tokens_become_likelier_and_bad_ones_less_likely(policy, make_samples):
    samples = make_samples(policy, 8)
    learner = trainer(policy, lr=1e-3)
    for _ in range(5):
        learner.step(samples)
    again = make_samples(policy, 8)
    pairs = zip(samples, again, strict=True)
    gains = [float((new.logprobs - old.logprobs)[old.loss_mask == 1].mean()) for old, new in pairs]
    advantages = [sample.advantage for sample in samples]
    assert np.corrcoef(gains, advantages)[0, 1] > 0.5


def test_the_split_into_micro_batches_does_not_change_the_step(make_policy, make_samples):
    results = []
    for budget in (1, 64, 100_000):
        policy = make_policy()
        samples = make_samples(policy, 9)
        result = trainer(policy, micro_batch_tokens=budget).step(samples)
        results.append((result, weights(policy)))
    reference, expected = results[0]
    for result, found in results[1:]:
        assert result.loss == pytest.approx(reference.loss, rel=1e-5)
        assert result.grad_norm == pytest.approx(reference.grad_norm, rel=1e-4)
        assert result.metrics.entropy == pytest.approx(reference.metrics.entropy, rel=1e-5)
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, expected[name], atol=2e-5, rtol=0)


def grouped(policy, make_samples, n: int) -> list[TrainSample]:
    """Samples of two groups; the recorded log-probs are those after other prompts, so that weights differ from 1."""
    samples = make_samples(policy, n)
    return [dataclasses.replace(s, prompt_ids=samples[i % 2].prompt_ids) for i, s in enumerate(samples)]


@pytest.mark.parametrize("settings", [{}, {"epochs_per_batch": 3}, {"micro_batch_tokens": 50}])
def test_reading_a_groups_prompt_once_does_not_change_the_step(make_policy, make_samples, settings):
    results = []
    for shares in (False, True):
        policy = make_policy()
        learner = trainer(policy, importance_cap=None, **settings)
        assert learner.shares_prefixes, "a Llama can"
        learner.shares_prefixes = shares
        samples = [
            dataclasses.replace(s, temperature=(1.0, 0.8)[i % 3 == 0])
            for i, s in enumerate(grouped(policy, make_samples, 12))
        ]
        results.append((learner.step(samples), weights(policy)))
    (plain, expected), (shared, found) = results
    assert shared.padded_tokens < plain.padded_tokens
    assert shared.loss == pytest.approx(plain.loss, rel=1e-4)
    assert shared.grad_norm == pytest.approx(plain.grad_norm, rel=1e-3)
    assert shared.metrics.entropy == pytest.approx(plain.metrics.entropy, rel=1e-5)
    assert shared.trained_tokens == plain.trained_tokens
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], atol=5e-5, rtol=0)


def test_bfloat16_reads_a_groups_prompt_once_too(make_policy, make_samples):
    losses = []
    for dtype in ("float32", "bfloat16"):
        policy = make_policy()
        samples = grouped(policy, make_samples, 8)
        losses.append(trainer(policy, dtype=dtype, importance_cap=None).step(samples).loss)
    assert losses[1] == pytest.approx(losses[0], rel=0.1)


def test_the_gradient_is_the_weighted_policy_gradient_over_the_whole_batchs_tokens(policy, make_samples):
    samples = [dataclasses.replace(s, logprobs=s.logprobs - 0.1) for s in make_samples(policy, 5)]
    total = sum(int(s.loss_mask.sum()) for s in samples)
    policy.model.zero_grad()
    loss = torch.zeros(())
    for s in samples:
        ids = torch.from_numpy(np.concatenate((s.prompt_ids, s.token_ids)).astype(np.int64))[None]
        logprobs = policy.model(ids).logits.log_softmax(-1)[0, len(s.prompt_ids) - 1 : -1]
        chosen = logprobs.gather(1, ids[0, len(s.prompt_ids) :, None])[:, 0]
        loss = loss - (torch.from_numpy(s.loss_mask.astype(np.float32)) * chosen).sum() * s.advantage * math.exp(0.1)
    (loss / total).backward()
    norm = torch.stack([p.grad.norm() for p in policy.model.parameters()]).norm().item()
    policy.model.zero_grad()
    assert trainer(policy).step(samples).grad_norm == pytest.approx(norm, rel=1e-4)


def test_an_advantage_per_token_equals_the_scalar_when_all_are_the_same(make_policy, make_samples):
    outcomes = []
    for per_token in (False, True):
        policy = make_policy()
        samples = make_samples(policy, 4)
        if per_token:
            samples = [dataclasses.replace(s, advantage=np.full(s.token_ids.size, s.advantage)) for s in samples]
        trainer(policy).step(samples)
        outcomes.append(weights(policy))
    assert all(torch.equal(outcomes[0][name], outcomes[1][name]) for name in outcomes[0])


def test_fresh_samples_have_ratio_one_and_no_mismatch(policy, make_samples):
    metrics = trainer(policy).step(make_samples(policy, 6)).metrics
    assert metrics.mismatch_kl == pytest.approx(0, abs=1e-6)
    assert metrics.effective_sample_size == pytest.approx(1, abs=1e-5)
    assert (metrics.clip_share, metrics.over_cap_share) == (0, 0)


def test_samples_of_an_older_version_say_nothing_of_the_mismatch(policy, make_samples):
    learner = trainer(policy)
    learner.version = 3
    assert learner.step(make_samples(policy, 4, version=2)).metrics.mismatch_kl is None


def test_later_epochs_measure_the_ratio_against_the_start_of_the_update(policy, make_samples):
    learner = trainer(policy, epochs_per_batch=4, lr=3e-3, clip_low=0.02, clip_high=0.02)
    seen = []
    original = learner._objective.loss
    learner._objective = _Watched(original, seen)
    result = learner.step(make_samples(policy, 6))
    assert result.optimizer_steps == 4
    assert result.version == 1
    assert seen[0] == 0
    assert max(seen[1:]) > 0.1, "after the first epoch some tokens are clipped"


class _Watched:
    """The real objective; notes the share of clipped tokens of each call."""

    def __init__(self, loss, seen):
        self._loss, self._seen = loss, seen

    def loss(self, *args, **kwargs):
        value, sums = self._loss(*args, **kwargs)
        self._seen.append(float(sums.clipped / sums.tokens))
        return value, sums


def test_one_step_per_batch_runs_one_forward_pass(policy, make_samples):
    calls = []
    samples = make_samples(policy, 6)
    learner = trainer(policy, micro_batch_tokens=100_000)
    policy.model.base_model.register_forward_hook(lambda *_: calls.append(1))
    learner.step(samples)
    assert len(calls) == 1


def test_a_batch_without_a_trained_token_takes_no_step(policy, make_samples):
    learner, before = trainer(policy), weights(policy)
    result = learner.step([dataclasses.replace(s, loss_mask=s.loss_mask * 0) for s in make_samples(policy, 3)])
    assert (result.stepped, result.skipped, result.version) == (False, SkipReason.EMPTY, 0)
    assert same(policy, before)


def test_an_empty_batch_takes_no_step(policy):
    assert trainer(policy).step([]).skipped is SkipReason.EMPTY


def test_a_batch_whose_advantages_are_all_zero_takes_no_step(policy, make_samples):
    learner, before = trainer(policy), weights(policy)
    result = learner.step([dataclasses.replace(s, advantage=0.0) for s in make_samples(policy, 3)])
    assert result.skipped is SkipReason.NO_SIGNAL
    assert same(policy, before)


def test_a_gradient_that_is_not_finite_takes_no_step_and_is_counted(policy, make_samples):
    samples = make_samples(policy, 3)
    learner, before = trainer(policy), weights(policy)
    result = learner.step([dataclasses.replace(s, advantage=3e38) for s in samples])
    assert (result.stepped, result.skipped) == (False, SkipReason.NON_FINITE)
    assert learner.skips[SkipReason.NON_FINITE] == 1
    assert same(policy, before)
    assert learner.step(samples).stepped, "and the next good batch trains"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 0.5])
def test_a_missing_log_prob_is_an_error_that_names_the_sample(policy, make_samples, bad):
    samples, before = make_samples(policy, 3), weights(policy)
    at = int(np.flatnonzero(samples[1].loss_mask)[0])
    samples[1].logprobs[at] = bad
    with pytest.raises(SampleError, match=rf"sample r1: behaviour log-prob of token {at} is"):
        trainer(policy).step(samples)
    assert same(policy, before)


def test_the_log_prob_of_a_token_that_is_not_trained_may_be_missing(policy, make_samples):
    samples = make_samples(policy, 3)
    samples[1].loss_mask[0] = 0
    samples[1].logprobs[0] = float("nan")
    assert trainer(policy).step(samples).stepped


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"logprobs": np.zeros(1, np.float32)}, "logprobs has shape"),
        ({"advantage": float("nan")}, "advantage of token"),
        ({"advantage": np.zeros(2)}, "advantage has shape"),
        ({"prompt_ids": np.zeros(200, np.int32)}, "the policy's context is 96"),
        ({"prompt_ids": np.array([5000], np.int32)}, "token id 5000"),
        ({"prompt_ids": np.array([-1], np.int32)}, "token id -1"),
        ({"temperature": 0.0}, "temperature 0.0"),
    ],
)
def test_a_malformed_sample_is_an_error_that_names_it(policy, make_samples, change, said):
    samples = make_samples(policy, 2)
    samples[1] = dataclasses.replace(samples[1], **change)
    with pytest.raises(SampleError, match=f"sample r1: .*{said}"):
        trainer(policy).step(samples)


def test_gradient_clipping_bounds_what_a_step_can_do(make_policy, make_samples):
    moved = []
    for limit in (None, 1e-9):
        policy = make_policy()
        samples, before = make_samples(policy, 4), weights(policy)
        trainer(policy, grad_clip=limit).step(samples)
        moved.append(sum(float((t - before[n]).abs().sum()) for n, t in policy.named_tensors().items()))
    assert moved[1] < 0.2 * moved[0]


def test_the_learning_rate_follows_the_optimiser_steps(policy, make_samples):
    learner = trainer(policy, warmup_steps=3, lr=4e-4)
    samples = make_samples(policy, 2)
    assert [learner.step(samples).lr for _ in range(5)] == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4, 4e-4])


def test_the_same_seed_and_batches_give_the_same_weights(make_policy, make_samples):
    found = []
    for _ in range(2):
        policy = make_policy()
        learner = trainer(policy)
        for seed in range(3):
            learner.step(make_samples(policy, 5, seed=seed))
        found.append(weights(policy))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_bfloat16_is_the_forward_pass_only_and_close_to_float32(make_policy, make_samples):
    losses = []
    for dtype in ("float32", "bfloat16"):
        policy = make_policy()
        samples = [dataclasses.replace(s, logprobs=s.logprobs - 0.2) for s in make_samples(policy, 6)]
        losses.append(trainer(policy, dtype=dtype).step(samples).loss)
        assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    assert losses[1] == pytest.approx(losses[0], abs=0.05)
    assert losses[1] != losses[0]


def test_a_policy_that_is_not_float32_is_refused(policy):
    policy.dtype = torch.bfloat16
    with pytest.raises(PolicyError, match="float32 weights"):
        trainer(policy)
