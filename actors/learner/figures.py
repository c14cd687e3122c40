"""What the learner says: a step's figures, each domain's part in it, and the end of a group. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict

from actors.learner.trainer import StepResult
from messages import DomainStep, DropReason, Experience, Outcome, OutcomeStatus


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


def end_of(
    group: Sequence[Experience], epoch: int, version: int, reason: DropReason | None, base: int | None
) -> Outcome:
    """The end of a group at ``version`` of ``epoch``: trained on ``base``, or dropped for ``reason``."""
    first = group[0].rollout
    oldest = min(experience.rollout.oldest_version for experience in group)
    return Outcome(
        group_id=first.group_id,
        task_id=first.task_id,
        domain=first.domain,
        level=first.level,
        status=OutcomeStatus.TRAINED if reason is None else OutcomeStatus.DROPPED,
        reason=reason,
        n_samples=len(group),
        n_tokens=sum(int(experience.rollout.loss_mask.sum()) for experience in group),
        reward_mean=sum(experience.reward for experience in group) / len(group),
        pass_rate_mean=sum(experience.pass_rate for experience in group) / len(group),
        epoch=epoch,
        version=version,
        lag=None if base is None else base - oldest,
        actor="learner",
    )
