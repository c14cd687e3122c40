"""Python: a function of the user's own scores the response. It runs unsandboxed, so a run has to allow it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, ClassVar

from pydantic import Field

from actors.verifiers.check import CORRECT, Check
from actors.verifiers.errors import BadVerifierOptions, InvalidScore
from actors.verifiers.plugin import Verifier, VerifierOptions
from messages import Task

ScoreFunction = Callable[[Task, str], Any]
"""``(task, response)`` to a score in [0, 1] (True is 1, False is 0), scores by objective with the key ``correct``, or a
:class:`Check`."""


class FunctionOptions(VerifierOptions):
    """Which function."""

    function: str = Field(
        pattern=r"^[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?$",
        description="MODULE:FUNCTION, or the name of an entry point of the group busrl.verifiers",
    )


class Function(Verifier[FunctionOptions]):
    """Calls a function by its dotted path."""

    Options: ClassVar[type[FunctionOptions]] = FunctionOptions
    compares = False

    def __init__(self, options: FunctionOptions) -> None:
        """Import the function.

        Raises:
            BadVerifierOptions: there is no such function.
        """
        super().__init__(options)
        self._function = load_function(options.function)

    def check(self, task: Task, response: str) -> Check:
        """What the function says; see :data:`ScoreFunction`."""
        return as_check(self._function(task, response), self.options.function)


def installed_function(kind: str, function: Any) -> type[Verifier[VerifierOptions]]:
    """A plugin that calls the function which an installed package offers under the name ``kind``.

    Raises:
        BadVerifierOptions: it is not callable.
    """
    callable_ = _callable(function, f"entry point {kind!r}")

    class InstalledFunction(Verifier[VerifierOptions]):
        """Calls the function of an installed package; it takes no options."""

        compares = False

        def check(self, task: Task, response: str) -> Check:
            """What the function says; see :data:`ScoreFunction`."""
            return as_check(callable_(task, response), kind)

    return InstalledFunction


def as_check(found: Any, name: str) -> Check:
    """Read what a score function returned.

    Raises:
        InvalidScore: it is nothing that a score function may return.
    """
    if isinstance(found, Check):
        return found
    if isinstance(found, Mapping):
        if CORRECT not in found:
            raise InvalidScore(f"{name} returned scores {sorted(map(str, found))} without {CORRECT!r}")
        return Check(found[CORRECT], found)
    return Check.of(found)


def load_function(path: str) -> ScoreFunction:
    """Import ``MODULE:FUNCTION``, or load the entry point of that name.

    Raises:
        BadVerifierOptions: there is no such function; the message says what is missing.
    """
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module) if name else _entry_point(path)
        for part in name.split(".") if name else ():
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise BadVerifierOptions(
            f"verifier 'python', option 'function': {path!r} can not be loaded: {error}"
        ) from error
    return _callable(found, f"verifier 'python', option 'function': {path!r}")


def _entry_point(name: str) -> Any:
    for point in entry_points(group="busrl.verifiers", name=name):
        return point.load()
    raise ImportError("no entry point of this name in the group busrl.verifiers; a function is MODULE:FUNCTION")


def _callable(found: Any, what: str) -> ScoreFunction:
    if not callable(found) or isinstance(found, type):
        raise BadVerifierOptions(f"{what} is {type(found).__name__}, expected a function (task, response) -> score")
    if inspect.iscoroutinefunction(found):
        raise BadVerifierOptions(f"{what} is async, expected a plain function: it runs in a process of its own")
    function: ScoreFunction = found
    return function
