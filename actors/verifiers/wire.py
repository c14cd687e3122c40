"""How the pool and its check processes talk: frames of msgpack over pipes, a request per group, a reply per check."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgpack

from actors.verifiers.result import CheckResult
from messages import Task, VerdictStatus

HELLO = "hello"
"""The process is up."""
READY = "ready"
"""The verifiers of the request are built; from here on each check has its time limit."""

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Reply:
    """The result of the check at ``index`` of the request."""

    index: int
    result: CheckResult


def frame(value: Any) -> bytes:
    """One value with its length in front."""
    payload: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return _LENGTH.pack(len(payload)) + payload


def request(items: Sequence[tuple[Task, str]]) -> bytes:
    """A request for checks; a task that several responses share is sent once."""
    places: dict[int, int] = {}
    tasks: list[dict[str, Any]] = []
    for task, _ in items:
        if id(task) not in places:
            places[id(task)] = len(tasks)
            tasks.append(task.model_dump())
    return frame([tasks, [[places[id(task)], response] for task, response in items]])


def reply(index: int, result: CheckResult) -> bytes:
    """A reply to one check of the request."""
    found = (result.pass_rate, dict(result.scores), result.log, result.seconds, result.permanent)
    return frame([index, result.status.value, *found])


def read_reply(value: Any) -> Reply:
    """What :func:`reply` made."""
    index, status, pass_rate, scores, log, seconds, permanent = value
    return Reply(index, CheckResult(VerdictStatus(status), pass_rate, scores, log, seconds, permanent=permanent))


def read_frame(stream: BinaryIO) -> Any:
    """The next value of a blocking stream; None at its end."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    return _unpack(stream.read(length))


class Frames:
    """Takes bytes as they come and gives back the values that are whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield every value that ``data`` completes."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            yield _unpack(bytes(self._buffer[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]


def _unpack(payload: bytes) -> Any:
    return msgpack.unpackb(payload, unicode_errors="surrogatepass", strict_map_key=False)
