"""reasoning-gym: the dataset's own scoring of a response, from its question, answer and metadata."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, cast

from pydantic import Field

from actors.verifiers.check import Check
from actors.verifiers.errors import BadVerifierOptions, MissingPackage
from actors.verifiers.plugin import Verifier, VerifierOptions
from messages import Task


class ReasoningGymOptions(VerifierOptions):
    """Which dataset scores, and what of its entry does not stand in the task."""

    dataset: str = Field(min_length=1, description="name of a reasoning-gym dataset")
    answer: str | None = Field(default=None, description="the entry's answer; none: the task's answer")
    metadata: dict[str, Any] = Field(default_factory=dict, description="the entry's metadata")


class ReasoningGym(Verifier[ReasoningGymOptions]):
    """Scores as the dataset does, partial credit included."""

    Options: ClassVar[type[ReasoningGymOptions]] = ReasoningGymOptions
    compares = False

    def __init__(self, options: ReasoningGymOptions) -> None:
        """Load the dataset's scoring.

        Raises:
            MissingPackage: reasoning-gym is not installed.
            BadVerifierOptions: it has no such dataset.
        """
        super().__init__(options)
        self._score = _scoring(options.dataset)

    def check(self, task: Task, response: str) -> Check:
        """The dataset's score of the stripped response."""
        entry = {
            "question": next((message.content for message in reversed(task.messages) if message.role == "user"), ""),
            "answer": task.answer if self.options.answer is None else self.options.answer,
            "metadata": self.options.metadata,
        }
        return Check.of(self._score(response.strip(), entry))


@cache
def _scoring(dataset: str) -> Callable[[str, dict[str, Any]], float]:
    try:
        import reasoning_gym
    except ImportError as missing:
        raise MissingPackage("verifier 'reasoning_gym' needs reasoning-gym: pip install 'busrl[domains]'") from missing
    try:
        scoring: Any = reasoning_gym.get_score_answer_fn(dataset)
    except ValueError as error:
        raise BadVerifierOptions(f"verifier 'reasoning_gym', option 'dataset': there is no {dataset!r}") from error
    return cast(Callable[[str, dict[str, Any]], float], scoring)
