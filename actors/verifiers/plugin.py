"""What a verifier plugin is: validated options, and a check that depends on the task and the response only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from actors.verifiers.check import Check
from messages import Task


class VerifierOptions(BaseModel):
    """Base of a plugin's options; an unknown option is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


OptionsT = TypeVar("OptionsT", bound=VerifierOptions)


class Verifier(ABC, Generic[OptionsT]):
    """One way of checking. Built once per set of options and process, then used for many responses."""

    Options: ClassVar[type[Any]] = VerifierOptions
    """The plugin's option class. Importing it costs nothing: heavy packages are imported when a check needs them."""
    compares: ClassVar[bool] = True
    """Whether responses are compared with the task's answer."""

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @classmethod
    def needs_answer(cls, options: OptionsT) -> bool:
        """Whether a task without an answer can not be checked with these options."""
        return cls.compares

    @abstractmethod
    def check(self, task: Task, response: str) -> Check:
        """Check one response.

        A wrong answer is a low score. Raising means that the check itself failed: that is an infrastructure error,
        which is retried and never becomes a reward.
        """


def reference(task: Task) -> str:
    """The answer that responses are compared with; :func:`actors.verifiers.validate` made sure that there is one."""
    assert task.answer is not None, f"task {task.id} has no answer"
    return task.answer
