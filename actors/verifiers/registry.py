"""The names of the verifiers: looking one up imports that plugin's module and no other.

Installed packages add their own under the entry point group ``busrl.verifiers``: a :class:`Verifier` class, or a plain
function ``(task, response) -> score``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from pydantic import ValidationError

from actors.verifiers.errors import (
    BadVerifierOptions,
    CodeNotTrusted,
    MissingAnswer,
    UnknownVerifier,
)
from actors.verifiers.plugin import Verifier, VerifierOptions
from messages import Task
from runtime.errors import UserError

ENTRY_POINTS = "busrl.verifiers"
PYTHON = "python"

VERIFIERS: dict[str, str] = {
    "exact": "actors.verifiers.exact:Exact",
    "numeric": "actors.verifiers.numeric:Numeric",
    "regex": "actors.verifiers.pattern:Pattern",
    "json_schema": "actors.verifiers.json_schema:JsonSchema",
    "reasoning_gym": "actors.verifiers.gym:ReasoningGym",
    PYTHON: "actors.verifiers.function:Function",
}
"""The built-in plugins: name to ``module:class``."""


def verifier_kinds() -> tuple[str, ...]:
    """Every name that :func:`build` knows: built-in and of installed packages."""
    return tuple(sorted({*VERIFIERS, *(point.name for point in entry_points(group=ENTRY_POINTS))}))


def validate(task: Task) -> VerifierOptions:
    """Check that a task's verifier exists and takes its options, without importing what checking needs.

    Raises:
        UnknownVerifier, BadVerifierOptions, MissingAnswer: one line that names the task and the key.
    """
    plugin = _plugin(task)
    try:
        options: VerifierOptions = plugin.Options.model_validate(task.verifier.options)
    except ValidationError as error:
        raise BadVerifierOptions(f"task {task.id}: {_options_error(task.verifier.kind, plugin, error)}") from error
    if task.answer is None and plugin.needs_answer(options):
        raise MissingAnswer(f"task {task.id}: verifier {task.verifier.kind!r} compares with the answer; give one")
    return options


def build(task: Task, *, trust_code: bool = False) -> Verifier[Any]:
    """Build the verifier of a task.

    Args:
        task: whose ``verifier`` names the plugin and its options.
        trust_code: allow the plugin ``python`` with a dotted path, which runs any function that can be imported here.

    Raises:
        UnknownVerifier, BadVerifierOptions, MissingAnswer, MissingPackage, CodeNotTrusted: one line each.
    """
    options = validate(task)
    plugin = _plugin(task)
    if task.verifier.kind == PYTHON and not trust_code:
        raise CodeNotTrusted(
            f"task {task.id}: verifier 'python' runs {task.verifier.options.get('function')!r} outside any sandbox; "
            "set trust_code = true in [run] if you mean it"
        )
    try:
        verifier: Verifier[Any] = plugin(options)
    except UserError as error:
        raise type(error)(f"task {task.id}: {error}") from error
    return verifier


def _plugin(task: Task) -> type[Verifier[Any]]:
    found = _load(task.verifier.kind)
    if found is None:
        known = ", ".join(verifier_kinds())
        raise UnknownVerifier(f"task {task.id}: there is no verifier {task.verifier.kind!r}, use one of {known}")
    return found


@cache
def _load(kind: str) -> type[Verifier[Any]] | None:
    path = VERIFIERS.get(kind)
    if path is not None:
        module, _, name = path.partition(":")
        plugin: type[Verifier[Any]] = getattr(importlib.import_module(module), name)
        return plugin
    for point in entry_points(group=ENTRY_POINTS, name=kind):
        loaded = point.load()
        if isinstance(loaded, type) and issubclass(loaded, Verifier):
            return loaded
        from actors.verifiers.function import installed_function

        return installed_function(kind, loaded)
    return None


def options_problem(kind: str, options: Mapping[str, Any]) -> str | None:
    """What is wrong with a known verifier's options, in one line, or None."""
    plugin = _load(kind)
    if plugin is None:
        return f"there is no verifier {kind!r}"
    try:
        plugin.Options.model_validate(options)
    except ValidationError as error:
        return _options_error(kind, plugin, error)
    return None


def _options_error(kind: str, plugin: type[Verifier[Any]], error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"]) or "options"
    if first["type"] == "extra_forbidden":
        known = ", ".join(plugin.Options.model_fields) or "no options"
        return f"verifier {kind!r} has no option {key!r}: it takes {known}"
    if first["type"] == "missing":
        return f"verifier {kind!r} needs the option {key!r}"
    message = first["msg"].removeprefix("Value error, ")
    return f"verifier {kind!r}, option {key!r}: {message}; found {first['input']!r:.80}"
