"""The learner's core: a batch of rewarded rollouts in, one policy update out, or a reason why there was none.

The loss is a mean over the trained tokens of the whole batch, however it is split into micro-batches. Weights are
touched only by a step whose loss and gradient are finite.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from actors.learner.checkpoint import TrainerState
from actors.learner.config import LearnerConfig
from actors.learner.objective import DecoupledPpo, ObjectiveMetrics, ObjectiveSums
from actors.learner.optimizers import adamw
from actors.learner.sample import TrainableSample, TrainSample, checked, total_trained
from actors.learner.schedule import learning_rate
from actors.policy.logprobs import PaddedBatch, token_logprobs
from actors.policy.model import Policy, PolicyError
from actors.policy.prefix import sequence_batches, takes_trees


class SkipReason(StrEnum):
    """Why a batch led to no (further) optimiser step."""

    EMPTY = "empty"
    """It has no trained token."""
    NO_SIGNAL = "no_signal"
    """The advantage of every trained token is 0."""
    NON_FINITE = "non_finite"
    """Its loss or gradient is not finite."""


@dataclass(frozen=True)
class StepResult:
    """What became of one batch.

    ``loss`` (per trained token) and ``metrics`` are those of the first pass, before any step; ``grad_norm`` is the
    last one's, before clipping. All three are None where nothing was computed. Token counts: ``trained_tokens`` are
    in the loss, ``tokens`` were in the sequences, ``padded_tokens`` went through the model per pass.
    """

    stepped: bool
    skipped: SkipReason | None
    version: int
    optimizer_steps: int
    lr: float
    loss: float | None
    grad_norm: float | None
    metrics: ObjectiveMetrics | None
    samples: int
    trained_tokens: int
    tokens: int
    padded_tokens: int
    seconds: float


@dataclass(frozen=True)
class _MicroBatch:
    """Padded sequences and, per scored token (r,), what the objective needs."""

    padded: PaddedBatch
    logprobs: Tensor
    advantages: Tensor
    current: Tensor


@dataclass(frozen=True)
class _Pass:
    """One forward and backward over a batch: loss, norm of the gradient, sums, and theta per micro-batch."""

    loss: float
    grad_norm: float
    sums: ObjectiveSums
    theta: list[Tensor]

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Trainer:
    """Trains ``policy`` in place.

    ``version`` is the weight version, one more after every batch that stepped; ``optimizer_steps`` counts AdamW's
    steps and drives the learning rate; ``skips`` counts batches without a step, by reason. ``shares_prefixes``: a
    group's prompt is read once; set where the model can, without effect on what is learned.
    """

    def __init__(self, policy: Policy, config: LearnerConfig, seed: int) -> None:
        """Take over the policy, on the device where it is, and seed torch.

        Raises:
            PolicyError: the policy's weights are not float32.
        """
        if policy.dtype != torch.float32:
            raise PolicyError(f"the learner trains float32 weights, {policy.folder} was loaded as {policy.dtype}")
        torch.manual_seed(seed)
        policy.model.eval()  # type: ignore[no-untyped-call]
        self.policy = policy
        self.config = config
        self.shares_prefixes = takes_trees(policy.model)
        self.version = 0
        self.optimizer_steps = 0
        self.skips: dict[SkipReason, int] = dict.fromkeys(SkipReason, 0)
        self._optimizer = adamw(policy, config.weight_decay, config.betas)
        self._objective = DecoupledPpo(
            config.clip_low, config.clip_high, config.dual_clip, config.importance_cap, config.over_cap
        )

    @property
    def lr(self) -> float:
        """Learning rate of the next optimiser step."""
        config = self.config
        return learning_rate(self.optimizer_steps, config.lr, config.schedule, config.warmup_steps, config.total_steps)

    def step(self, samples: Sequence[TrainSample]) -> StepResult:
        """Train on one batch: ``epochs_per_batch`` optimiser steps, or none where there is nothing to learn.

        Raises:
            SampleError: a sample is malformed; the message names it and nothing has been changed.
        """
        started = time.perf_counter()
        vocabulary, context = self.policy.vocabulary_size, self.policy.context_length
        batch = [checked(sample, context, vocabulary) for sample in samples]
        reason = _nothing_to_learn(batch)
        micro: list[_MicroBatch] = []
        first: _Pass | None = None
        done, lr, grad_norm = 0, self.lr, None
        if reason is None:
            micro = self._micro_batches([sample for sample in batch if sample.n_trained])
            total = total_trained(batch)
            for _ in range(self.config.epochs_per_batch):
                passed = self._accumulate(micro, total, None if first is None else first.theta)
                first, grad_norm = first or passed, passed.grad_norm
                if not passed.finite:
                    reason = SkipReason.NON_FINITE
                    break
                lr = self.lr
                self._optimizer.step(lr)
                self.optimizer_steps += 1
                done += 1
            self._optimizer.zero_grad()
        self.version += 1 if done else 0
        if reason is not None:
            self.skips[reason] += 1
        return StepResult(
            stepped=done > 0,
            skipped=reason,
            version=self.version,
            optimizer_steps=self.optimizer_steps,
            lr=lr,
            loss=None if first is None else first.loss,
            grad_norm=grad_norm,
            metrics=None if first is None else ObjectiveMetrics.of(first.sums),
            samples=len(batch),
            trained_tokens=total_trained(batch),
            tokens=sum(sample.sequence.ids.size for sample in batch),
            padded_tokens=sum(part.padded.ids.numel() for part in micro),
            seconds=time.perf_counter() - started,
        )

    def state(self) -> TrainerState:
        """Return everything that the next step depends on. The tensors share memory with the trainer."""
        rng = {"torch": torch.get_rng_state()}
        if self.policy.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state(self.policy.device)
        counters = {"version": self.version, "optimizer_steps": self.optimizer_steps}
        counters |= {f"skipped_{reason.value}": count for reason, count in self.skips.items()}
        return TrainerState(self.policy.named_tensors(), self._optimizer.state_tensors(), rng, counters)

    def restore(self, state: TrainerState) -> None:
        """Go on from ``state``: the next step is bit for bit what it would have been.

        Raises:
            PolicyError: the tensors are another policy's.
        """
        self.policy.load_tensors(state.model)
        self._optimizer.load_state_tensors(state.optimizer)
        torch.set_rng_state(state.rng["torch"])
        if self.policy.device.type == "cuda" and "cuda" in state.rng:
            torch.cuda.set_rng_state(state.rng["cuda"], self.policy.device)
        self.version = state.counters["version"]
        self.optimizer_steps = state.counters["optimizer_steps"]
        self.skips = {reason: state.counters[f"skipped_{reason.value}"] for reason in SkipReason}

    def _micro_batches(self, batch: Sequence[TrainableSample]) -> list[_MicroBatch]:
        device = self.policy.device
        sequences = [sample.sequence for sample in batch]
        parts = []
        for part in sequence_batches(
            sequences, self.config.micro_batch_tokens, self.policy.model, self.shares_prefixes
        ):
            chosen = [batch[i] for i in part.indices]
            versions = np.concatenate([sample.versions for sample in chosen])
            parts.append(
                _MicroBatch(
                    padded=part.padded,
                    logprobs=torch.from_numpy(np.concatenate([s.logprobs for s in chosen])).to(device),
                    advantages=torch.from_numpy(np.concatenate([s.advantages for s in chosen])).to(device),
                    current=torch.from_numpy(versions == self.version).to(device),
                )
            )
        return parts

    def _accumulate(self, micro: Sequence[_MicroBatch], total: int, prox: Sequence[Tensor] | None) -> _Pass:
        """Add up the batch's gradient. Without ``prox`` this is the start of the update: theta is the proximal
        policy, and its log-probs, kept from this pass, serve later epochs without another forward.
        """
        self._optimizer.zero_grad()
        losses: list[Tensor] = []
        theta: list[Tensor] = []
        sums: ObjectiveSums | None = None
        for i, part in enumerate(micro):
            with torch.autocast(self.policy.device.type, dtype=torch.bfloat16, enabled=self.config.dtype == "bfloat16"):
                logprobs, entropy = token_logprobs(self.policy.model, part.padded)
            theta.append(logprobs.detach())
            loss, part_sums = self._objective.loss(
                logprobs,
                theta[i] if prox is None else prox[i],
                part.logprobs,
                part.advantages,
                denominator=total,
                entropy=entropy,
                current=part.current,
            )
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            sums = part_sums if sums is None else sums + part_sums
        assert sums is not None, "a batch with trained tokens has a micro-batch"
        loss_sum = float(torch.stack(losses).sum())
        return _Pass(loss_sum, self._optimizer.clip(self.config.grad_clip), sums, theta)


def _nothing_to_learn(batch: Sequence[TrainableSample]) -> SkipReason | None:
    if not total_trained(batch):
        return SkipReason.EMPTY
    if not any(sample.advantages.any() for sample in batch):
        return SkipReason.NO_SIGNAL
    return None
