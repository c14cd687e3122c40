"""A domain makes problems from randomness: this file states what one is, and nothing here knows tasks or splits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

from actors.domains.mistakes import plausible_mistake
from messages.task import VerifierSpec


@dataclass(frozen=True)
class Problem:
    """A prompt, its right answer and how an answer to it is checked."""

    prompt: str
    answer: str
    verifier: VerifierSpec = field(default_factory=lambda: VerifierSpec(kind="exact"))
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Domain(ABC):
    """One kind of problem at one or more levels; level 0 is the easiest."""

    name: str
    n_levels: ClassVar[int] = 1
    phrases: tuple[str, ...] = ()
    """Fixed pieces of the prompts and answers: a small tokenizer gives each of them one id."""

    @abstractmethod
    def problem(self, rng: Random, level: int) -> Problem:
        """Draw one problem of ``level``; equal generators draw equal problems."""

    def lesson(self, rng: Random, level: int) -> Problem:
        """Draw a problem to learn from by demonstration; a domain may show more at once than a task asks."""
        return self.problem(rng, level)

    def mistake(self, answer: str, rng: Random) -> str:
        """Return a wrong answer of the kind that a beginner gives instead of ``answer``."""
        return plausible_mistake(answer, rng)
