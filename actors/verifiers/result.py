"""CheckResult: what became of one check in the pool; the law that a failed check has no score is kept here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from actors.verifiers.check import Check
from messages import VerdictStatus

MAX_LOG_CHARS = 4096


@dataclass(frozen=True)
class CheckResult:
    """What a verdict needs to know.

    Attributes:
        status: passed (a pass rate of 1), failed, or infrastructure_error.
        pass_rate: in [0, 1]; None for an infrastructure error, which carries no scores either.
        scores: score per objective.
        log: why, at most ``MAX_LOG_CHARS`` characters.
        seconds: time that the last attempt took.
        attempts: how often the check was tried.
        permanent: an infrastructure error that every further attempt would meet again, such as an unknown verifier.
    """

    status: VerdictStatus
    pass_rate: float | None
    scores: Mapping[str, float] = field(default_factory=dict)
    log: str = ""
    seconds: float = 0.0
    attempts: int = 1
    permanent: bool = False

    @classmethod
    def scored(cls, check: Check, seconds: float) -> CheckResult:
        """A check that came to a score."""
        status = VerdictStatus.PASSED if check.pass_rate == 1.0 else VerdictStatus.FAILED
        return cls(status, check.pass_rate, check.scores, bounded(check.log), seconds)

    @classmethod
    def broken(cls, reason: str, seconds: float = 0.0, *, permanent: bool = False) -> CheckResult:
        """A check that came to none."""
        return cls(VerdictStatus.INFRASTRUCTURE_ERROR, None, {}, bounded(reason), seconds, permanent=permanent)

    @property
    def is_broken(self) -> bool:
        """Whether it is an infrastructure error."""
        return self.status is VerdictStatus.INFRASTRUCTURE_ERROR


def bounded(text: str) -> str:
    """The beginning of a text, valid as UTF-8, at most ``MAX_LOG_CHARS`` characters."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= MAX_LOG_CHARS else text[: MAX_LOG_CHARS - 1] + "…"
