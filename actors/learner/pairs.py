"""Where SFT's prompt/response pairs come from: JSONL files, checked line by line, or a generator function."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

Messages = Sequence[Mapping[str, str]]


class PairError(ValueError):
    """A source of pairs that can not be used; one line that says where and why."""


@dataclass(frozen=True)
class Pair:
    """A conversation prefix and the response to learn for it."""

    messages: Messages
    response: str


@dataclass(frozen=True)
class RejectedLine:
    """A line of a file that is not a pair."""

    path: Path
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}: {self.reason}"


def load_object(dotted: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names.

    Raises:
        PairError: there is no such module or function.
    """
    module_name, _, name = dotted.partition(":")
    try:
        found = getattr(import_module(module_name), name)
    except ModuleNotFoundError as error:
        raise PairError(f"{dotted}: there is no module {error.name}") from error
    except AttributeError:
        raise PairError(f"{dotted}: module {module_name} has no {name}") from None
    if not callable(found):
        raise PairError(f"{dotted} is a {type(found).__name__}, not a function")
    function: Callable[..., Any] = found
    return function


def generated_pairs(function: Callable[..., Any], seed: int, options: Mapping[str, Any]) -> Iterator[Pair]:
    """Yield the pairs of ``function(seed, **options)``; a prompt is a text or a list of messages.

    Raises:
        PairError: an option it does not take, or an item that is no (prompt, response).
    """
    try:
        items = iter(function(seed, **options))
    except TypeError as error:
        raise PairError(f"{function.__module__}:{function.__name__} called with {dict(options)}: {error}") from error
    for number, item in enumerate(items, start=1):
        try:
            prompt, response = item
        except (TypeError, ValueError):
            raise PairError(f"{function.__name__}: item {number} is not a pair (prompt, response)") from None
        yield Pair(_as_messages(prompt), response)


def read_pairs(paths: Sequence[Path]) -> tuple[list[Pair], list[RejectedLine]]:
    """Return the pairs of JSONL files and the lines that are none, each with its number (from 1) and reason.

    Every assistant message of a ``messages`` line gives one pair with what stands before it.

    Raises:
        PairError: a file is missing or not a single line is a pair.
    """
    pairs: list[Pair] = []
    rejected: list[RejectedLine] = []
    for path in paths:
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise PairError(f"{path}: {error.strerror}") from error
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                pairs += _pairs_of_line(line)
            except ValueError as error:
                rejected.append(RejectedLine(path, number, str(error)))
    if not pairs:
        first = f"; {rejected[0]}" if rejected else ""
        raise PairError(f"no line of {', '.join(map(str, paths))} is a prompt/response pair{first}")
    return pairs, rejected


def shuffled_forever(pairs: Sequence[Pair], rng: np.random.Generator) -> Iterator[Pair]:
    """Yield all pairs in a fresh random order, again and again."""
    while True:
        for i in rng.permutation(len(pairs)):
            yield pairs[int(i)]


def _pairs_of_line(line: bytes) -> list[Pair]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"a {type(record).__name__}, not an object with prompt and response")
    if "messages" in record:
        return _pairs_of_conversation(record["messages"])
    for key in ("prompt", "response"):
        if not isinstance(record.get(key), str) or not record[key]:
            raise ValueError(f"{key!r} is missing, empty or not a text")
    return [Pair(_as_messages(record["prompt"]), record["response"])]


def _pairs_of_conversation(messages: Any) -> list[Pair]:
    checked = _as_messages(messages)
    pairs = [
        Pair(checked[:i], message["content"])
        for i, message in enumerate(checked)
        if message["role"] == "assistant" and i > 0
    ]
    if not pairs:
        raise ValueError("'messages' has no assistant message after a prompt")
    return pairs


def _as_messages(prompt: Any) -> Messages:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list | tuple) or not prompt:
        raise ValueError("'messages' is not a list of messages")
    for message in prompt:
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise ValueError("a message needs the texts 'role' and 'content'")
    return prompt
