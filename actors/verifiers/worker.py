"""The check process: builds verifiers, runs checks, replies. It dies with its parent and holds nothing of value.

Its protocol owns the standard output that it was started with; what a plugin prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, BinaryIO

from actors.verifiers.errors import VerifierError
from actors.verifiers.plugin import Verifier
from actors.verifiers.registry import build
from actors.verifiers.result import CheckResult
from actors.verifiers.wire import HELLO, READY, frame, read_frame, reply
from messages import Task
from runtime.errors import UserError

_PR_SET_PDEATHSIG = 1
_MAX_VERIFIERS = 256
OUT_OF_MEMORY = 71
"""Exit code of a process that ran out of memory: what is left of it is not trusted with another check."""


class Checks:
    """Checks responses; keeps the verifiers that it built, the least recently used ones go first."""

    def __init__(self, *, trust_code: bool) -> None:
        self._trust_code = trust_code
        self._built: OrderedDict[tuple[str, str, bool], Verifier[Any]] = OrderedDict()

    def verifier(self, task: Task) -> Verifier[Any] | CheckResult:
        """The verifier of a task, or the result of every check of it when there is none."""
        key = (task.verifier.kind, json.dumps(task.verifier.options, default=repr), task.answer is None)
        found = self._built.get(key)
        if found is not None:
            self._built.move_to_end(key)
            return found
        started = time.perf_counter()
        try:
            found = build(task, trust_code=self._trust_code)
        except MemoryError:
            raise
        except Exception as error:
            seconds = time.perf_counter() - started
            return CheckResult.broken(_said(error), seconds, permanent=isinstance(error, UserError))
        self._built[key] = found
        if len(self._built) > _MAX_VERIFIERS:
            self._built.popitem(last=False)
        return found

    def check(self, verifier: Verifier[Any] | CheckResult, task: Task, response: str) -> CheckResult:
        """Run one check."""
        if isinstance(verifier, CheckResult):
            return verifier
        started = time.perf_counter()
        try:
            check = verifier.check(task, response)
        except MemoryError:
            raise
        except BaseException as error:  # a plugin may even call sys.exit
            reason = f"verifier {task.verifier.kind!r} on task {task.id}: {_said(error)}"
            return CheckResult.broken(reason, time.perf_counter() - started)
        return CheckResult.scored(check, time.perf_counter() - started)


def serve(requests: BinaryIO, replies: BinaryIO, checks: Checks) -> None:
    """Answer requests until there are no more."""
    _send(replies, frame(HELLO))
    while (found := read_frame(requests)) is not None:
        tasks, items = [Task.model_validate(task) for task in found[0]], found[1]
        verifiers = [checks.verifier(task) for task in tasks]
        _send(replies, frame(READY))
        for index, (place, response) in enumerate(items):
            _send(replies, reply(index, checks.check(verifiers[place], tasks[place], response)))


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, VerifierError) else f"{type(error).__name__}: {error}"


def _send(stream: BinaryIO, data: bytes) -> None:
    stream.write(data)
    stream.flush()


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above took hold
        os._exit(1)


def _limit_memory(limit_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # not a Unix: no bound
        return
    if limit_bytes > 0 and sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(arguments: Sequence[str]) -> None:
    """Serve on standard input and output; ``arguments`` are the parent's pid, trust (0 or 1) and a bound in bytes."""
    parent, trust_code, memory_limit_bytes = (int(argument) for argument in arguments)
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    _die_with_parent(parent)
    _limit_memory(memory_limit_bytes)
    try:
        serve(requests, replies, Checks(trust_code=bool(trust_code)))
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BrokenPipeError:
        pass  # the parent closed
    os._exit(0)  # without running what plugins left behind, such as threads that never end


if __name__ == "__main__":
    main(sys.argv[1:])
