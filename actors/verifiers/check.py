"""Check: what a verifier found. A value that is no score in [0, 1] can not be made into one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from actors.verifiers.errors import InvalidScore

CORRECT = "correct"
"""Name of the objective that every built-in verifier scores."""


@dataclass(frozen=True)
class Check:
    """What checking one response found.

    Attributes:
        pass_rate: share of the checks that passed, in [0, 1]; 1 is a right answer.
        scores: score per objective, each in [0, 1].
        log: what a person needs to understand the score; bounded where it travels.

    Raises:
        InvalidScore: a score is no number, NaN, or outside [0, 1].
    """

    pass_rate: float
    scores: Mapping[str, float] = field(default_factory=dict)
    log: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pass_rate", score("pass_rate", self.pass_rate))
        object.__setattr__(self, "scores", {str(name): score(str(name), value) for name, value in self.scores.items()})

    @classmethod
    def of(cls, correct: float, log: str = "") -> Check:
        """A check with one objective, ``correct``."""
        return cls(correct, {CORRECT: correct}, log)


def score(name: str, value: Any) -> float:
    """Return ``value`` as a float in [0, 1]; True is 1 and False is 0.

    Raises:
        InvalidScore: it is not a score.
    """
    if not isinstance(value, Real) and not hasattr(value, "__float__"):
        raise InvalidScore(f"score {name!r} is {value!r} ({type(value).__name__}), expected a number in [0, 1]")
    found = float(value)
    if not 0.0 <= found <= 1.0:  # NaN fails this too
        raise InvalidScore(f"score {name!r} is {found}, expected a number in [0, 1]")
    return found
