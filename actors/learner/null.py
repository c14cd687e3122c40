"""A learner that learns nothing: every step only counts up. It measures what everything around the gradient costs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from actors.learner.actor import Learner
from actors.learner.sample import TrainSample
from actors.learner.trainer import StepResult, Trainer
from actors.policy.model import Policy


class NullTrainer(Trainer):
    """Takes steps without computing anything; checkpoints, broadcasts and reports are the real ones."""

    def step(self, samples: Sequence[TrainSample]) -> StepResult:
        """Count the batch as trained."""
        began = time.perf_counter()
        self.version += 1
        tokens = sum(sample.token_ids.size for sample in samples)
        return StepResult(
            stepped=True,
            skipped=None,
            version=self.version,
            optimizer_steps=self.optimizer_steps,
            lr=0.0,
            loss=None,
            grad_norm=None,
            metrics=None,
            samples=len(samples),
            trained_tokens=tokens,
            tokens=tokens,
            padded_tokens=0,
            seconds=time.perf_counter() - began,
        )


class NullLearner(Learner):
    """See the module."""

    def make_trainer(self, policy: Policy) -> Trainer:
        """What takes the steps."""
        return NullTrainer(policy, self.config, self.context.run.run.seed)
