"""Procedural sources of tasks, reached by name only: this room imports no source, and a wrong one is one line."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from messages import Task
from messages.task import Split
from runtime.errors import UserError

_REGISTRY = "actors.domains.registry"
_ERRORS = "actors.domains.errors"


class TaskSource:
    """A source of the actors room, such as ``arithmetic`` or ``reasoning-gym``."""

    def __init__(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        """Open a source.

        Args:
            name: one of ``actors.domains.registry.source_names()``.
            options: what opening it takes; ``reasoning-gym`` takes ``name``, one or several datasets.

        Raises:
            UserError: there is no such source, or it takes no such option, or a package is missing.
        """
        self.name = name
        self._error: type[Exception] = importlib.import_module(_ERRORS).SourceError
        try:
            self._source = importlib.import_module(_REGISTRY).open_source(name, **(options or {}))
        except self._error as error:
            raise UserError(str(error)) from error

    def tasks(self, n: int, seed: int, split: Split, level: int | None = None) -> Iterator[Task]:
        """Make ``n`` tasks lazily; ``level`` None is the source's own default.

        Raises:
            UserError: the source has no such level, or fewer tasks than that.
        """
        try:
            yield from self._source.tasks(n, seed, split, **({} if level is None else {"level": level}))
        except self._error as error:
            raise UserError(str(error)) from error
