"""Experience, Batch, Step, Outcome and Evaluation: from a rewarded rollout to a gradient, and what became of it."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Self

from pydantic import Field, model_validator

from messages.record import Identifier, Name, Record, registered
from messages.rollout import Rollout
from messages.task import Value


@registered
class Experience(Record):
    """A rollout with its reward (fused) and its group's advantage, both finite scalars."""

    schema_name: ClassVar[str] = "experience"

    rollout: Rollout
    reward: float = Field(allow_inf_nan=False)
    rewards: dict[str, float] = Field(default_factory=dict, description="reward per objective before fusion")
    advantage: float = Field(allow_inf_nan=False)
    pass_rate: float = Field(ge=0, le=1)


@registered
class Batch(Record):
    """What one optimiser step eats: whole groups, none older than the lag bound at the version it is meant for."""

    schema_name: ClassVar[str] = "batch"

    id: Identifier
    number: int = Field(ge=1, description="1, 2, 3, ... over the life of the run")
    version: int = Field(ge=0, description="weight version it was composed for (the one it will be applied to)")
    experiences: tuple[Experience, ...] = Field(min_length=1)
    traceparents: tuple[str, ...] = Field(default=(), description="W3C contexts of its groups, for the step's links")


class DomainStep(Value):
    """One domain's part in a step."""

    n_samples: int
    n_tokens: int
    reward_mean: float
    pass_rate_mean: float


@registered
class Step(Record):
    """What became of one batch: the version it led to, or why it took no step. The run's progress axis."""

    schema_name: ClassVar[str] = "step"

    epoch: int = Field(ge=0)
    version: int = Field(ge=0, description="weight version after the step")
    batch_id: Identifier
    batch_number: int = Field(ge=0)
    stepped: bool
    reason: str = Field(default="", description="why no step was taken")
    group_ids: tuple[Identifier, ...] = Field(default=(), description="groups that the step trained")
    refused_ids: tuple[Identifier, ...] = Field(default=(), description="groups of the batch that were not trained")
    n_samples: int = 0
    n_tokens: int = 0
    lag_mean: float = 0.0
    lag_max: int = 0
    metrics: dict[str, float] = Field(default_factory=dict)
    domains: dict[str, DomainStep] = Field(default_factory=dict)
    busy_s: float = Field(default=0.0, description="seconds of the learner spent training this batch")
    waiting_s: float = Field(default=0.0, description="seconds the learner waited for this batch")
    finished_s: float = Field(description="Unix time")


class OutcomeStatus(StrEnum):
    """How a dispatched group ended; ``REPLAYED`` reopens a dead one."""

    TRAINED = "trained"
    DROPPED = "dropped"
    DEAD = "dead"
    REPLAYED = "replayed"

    def changes(self, known: OutcomeStatus | None) -> bool:
        """Whether this end changes what is known of a group (None: nothing yet).

        A group that was sampled twice may come to two ends: the first counts, but trained outranks dropped and dead.
        """
        if known is None or known is OutcomeStatus.REPLAYED:
            return self is not OutcomeStatus.REPLAYED
        if known is OutcomeStatus.DEAD and self is OutcomeStatus.REPLAYED:
            return True
        return self is OutcomeStatus.TRAINED and known is not OutcomeStatus.TRAINED


class DropReason(StrEnum):
    """Every reason for which a group is given up on purpose."""

    NO_SIGNAL = "no_signal"
    """All samples earned the same reward: no advantage, no gradient."""
    STALE = "stale"
    """Its oldest token lags more than max_lag behind the version that would be trained."""
    ORPHANED = "orphaned"
    """Sampled by weights that a learner's restart from an older checkpoint has undone."""
    EVICTED = "evicted"
    """The replay buffer was full and it was the oldest."""
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    """A verifier could not check one of its samples, also after retries."""
    EMPTY = "empty"
    """No sample of the group has a token to train on."""
    NON_FINITE = "non_finite"
    """Its batch gave a loss or gradient that is not finite; the step was refused."""


@registered
class Outcome(Record):
    """The end of one dispatched group. Exactly one of trained, dropped and dead closes a group in the ledger."""

    schema_name: ClassVar[str] = "outcome"

    group_id: Identifier
    task_id: Identifier
    domain: Name
    level: int = Field(default=0, ge=0)
    status: OutcomeStatus
    reason: DropReason | None = None
    n_samples: int = Field(ge=0)
    n_tokens: int = Field(default=0, ge=0)
    reward_mean: float | None = None
    pass_rate_mean: float | None = None
    epoch: int = Field(default=0, ge=0)
    version: int = Field(default=0, ge=0, description="version that trained it, or newest known when it ended")
    lag: int | None = Field(default=None, description="version trained on minus its oldest token's version")
    actor: str = Field(description="kind of actor that decided")

    @model_validator(mode="after")
    def _reason_fits_status(self) -> Self:
        if (self.status is OutcomeStatus.DROPPED) != (self.reason is not None):
            raise ValueError(f"status {self.status.value} with reason {self.reason}: exactly a drop has a reason")
        return self


@registered
class Evaluation(Record):
    """Held-out score of one domain at one weight version."""

    schema_name: ClassVar[str] = "evaluation"

    epoch: int = Field(ge=0)
    version: int = Field(ge=0)
    domain: Name
    n_tasks: int = Field(ge=0)
    n_errors: int = Field(default=0, ge=0, description="samples whose check failed for our reasons; not in the scores")
    samples_per_task: int = Field(ge=0)
    sampled_accuracy: float | None = Field(default=None, description="mean score of samples at temperature 1")
    greedy_accuracy: float | None = Field(default=None, description="mean score of the greedy answer")
    full: bool = Field(description="every held-out task of the domain, or a share of them while training goes on")
    seconds: float = Field(ge=0)
    finished_s: float = Field(description="Unix time")
