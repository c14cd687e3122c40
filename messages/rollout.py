"""Rollout and Verdict: one sample with everything that training needs to know of it, and what checking it found."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from messages.arrays import Float32Array, Int32Array, MaskArray
from messages.record import Identifier, Name, Record, registered


class FinishReason(StrEnum):
    """Why a sample ended."""

    STOP = "stop"
    LENGTH = "length"
    DEADLINE = "deadline"


@registered
class Rollout(Record):
    """One sample: what was sampled, how probable it was, by which weights. Per-token arrays have equal length (n,)."""

    schema_name: ClassVar[str] = "rollout"

    id: Identifier
    group_id: Identifier
    task_id: Identifier
    task_seq: int = Field(ge=1)
    domain: Name
    level: int = Field(default=0, ge=0)
    index: int = Field(ge=0, description="place in the group")
    n: int = Field(ge=1, description="samples of the group")
    prompt_ids: Int32Array = Field(description="token ids of the prompt, shape (p,)")
    token_ids: Int32Array = Field(description="sampled token ids, shape (n,)")
    logprobs: Float32Array = Field(description="behaviour log-probs of the sampling distribution, natural, shape (n,)")
    loss_mask: MaskArray = Field(description="1 where a token is trained, shape (n,)")
    versions: Int32Array = Field(description="weight version that sampled each token, shape (n,)")
    epoch: int = Field(ge=0, description="the oldest weight epoch of its tokens")
    temperature: float = Field(ge=0)
    finish_reason: FinishReason
    response: str = Field(description="the sampled tokens as text, for verifiers; never tokenised again")
    generator: str = Field(description="instance that sampled it")
    started_s: float = Field(description="Unix time at which the generator took the turn")
    finished_s: float = Field(description="Unix time at which the sample ended")

    @model_validator(mode="after")
    def _arrays_belong_together(self) -> Self:
        n = self.token_ids.shape[0]
        for name in ("logprobs", "loss_mask", "versions"):
            found = getattr(self, name).shape[0]
            if found != n:
                raise ValueError(f"{name} has {found} entries, token_ids has {n}")
        if n and not np.isfinite(self.logprobs).all():
            at = int(np.flatnonzero(~np.isfinite(self.logprobs))[0])
            raise ValueError(f"logprobs[{at}] is {self.logprobs[at]}: a log-prob must be finite, it is never guessed")
        if self.index >= self.n:
            raise ValueError(f"index {self.index} in a group of {self.n}")
        return self

    @property
    def oldest_version(self) -> int:
        """The oldest weight version among its tokens; what lag is counted from."""
        return int(self.versions.min()) if self.versions.size else 0

    @property
    def newest_version(self) -> int:
        """The newest weight version among its tokens."""
        return int(self.versions.max()) if self.versions.size else 0


class VerdictStatus(StrEnum):
    """What a check came to. An ``INFRASTRUCTURE_ERROR`` is ours: it carries no score and never becomes a reward."""

    PASSED = "passed"
    FAILED = "failed"
    INFRASTRUCTURE_ERROR = "infrastructure_error"


@registered
class Verdict(Record):
    """What checking a rollout found: a status, a score per objective in [0, 1], and a bounded log."""

    schema_name: ClassVar[str] = "verdict"

    rollout: Rollout
    status: VerdictStatus
    pass_rate: float | None = Field(ge=0, le=1, description="share of checks passed; None for an infrastructure error")
    scores: dict[str, float] = Field(default_factory=dict, description="score per objective")
    log: str = Field(default="", max_length=4096)
    seconds: float = Field(ge=0, description="time the check took")

    @model_validator(mode="after")
    def _score_fits_status(self) -> Self:
        failed = self.status is VerdictStatus.INFRASTRUCTURE_ERROR
        if failed and (self.pass_rate is not None or self.scores):
            raise ValueError("an infrastructure_error carries no pass_rate and no scores")
        if not failed and self.pass_rate is None:
            raise ValueError(f"a verdict that {self.status.value} needs a pass_rate")
        if not all(np.isfinite(score) for score in self.scores.values()):
            raise ValueError(f"scores {self.scores} must be finite")
        return self
