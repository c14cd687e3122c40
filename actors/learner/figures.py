"""What a step says of itself: the objective's figures and each domain's part. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict

from actors.learner.trainer import StepResult
from messages import DomainStep, Experience


def metrics(result: StepResult | None) -> dict[str, float]:
    """The figures of a step by name; none where nothing was computed."""
    if result is None or result.metrics is None:
        return {}
    figures = {**asdict(result.metrics), "loss": result.loss, "grad_norm": result.grad_norm, "lr": result.lr}
    return {name: float(value) for name, value in figures.items() if value is not None}


def by_domain(experiences: Sequence[Experience]) -> dict[str, DomainStep]:
    """Samples, trained tokens and mean rewards per domain."""
    grouped: dict[str, list[Experience]] = defaultdict(list)
    for experience in experiences:
        grouped[experience.rollout.domain].append(experience)
    return {
        domain: DomainStep(
            n_samples=len(part),
            n_tokens=sum(int(experience.rollout.loss_mask.sum()) for experience in part),
            reward_mean=sum(experience.reward for experience in part) / len(part),
            pass_rate_mean=sum(experience.pass_rate for experience in part) / len(part),
        )
        for domain, part in grouped.items()
    }
