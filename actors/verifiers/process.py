"""One check process, seen from its parent: a request at a time, each check under a time limit, killed when it hangs.

The limit is kept from outside, because neither a signal nor a thread stops a check that never returns to the
interpreter (a regular expression, a power of a power).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.verifiers.errors import PoolBroken
from actors.verifiers.result import CheckResult
from actors.verifiers.wire import HELLO, READY, Frames, read_reply, request
from actors.verifiers.worker import OUT_OF_MEMORY
from messages import Task

START_LIMIT_S = 60.0
LOAD_LIMIT_S = 60.0
"""What building verifiers may take: they import whole libraries the first time."""
_STOP_LIMIT_S = 2.0
_PIPE_LIMIT_S = 1.0


@dataclass
class Round:
    """What a request came to: results by index in the request, and what ended it early, if anything did.

    ``loaded`` tells whether the checks had begun; a failure before that is no single check's. ``seconds`` is the time
    from the last reply to the failure.
    """

    results: dict[int, CheckResult] = field(default_factory=dict)
    loaded: bool = False
    failure: str | None = None
    seconds: float = 0.0


class CheckProcess(asyncio.SubprocessProtocol):
    """Runs checks; :meth:`start` makes one, :meth:`stop` ends it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._hello: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._finished: asyncio.Future[None] | None = None
        self._round = Round()
        self._expected = 0
        self._limit_s = 0.0
        self._deadline = 0.0
        self._last_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._killed_because: str | None = None
        self._transport: asyncio.SubprocessTransport | None = None

    @classmethod
    async def start(cls, *, trust_code: bool, memory_limit_bytes: int) -> CheckProcess:
        """Start a process and wait until it is up.

        Raises:
            PoolBroken: it ends, or says nothing for ``START_LIMIT_S``; the message says how.
        """
        process = cls()
        await process._loop.subprocess_exec(
            lambda: process,
            *(sys.executable, "-m", "actors.verifiers.worker"),
            *(str(os.getpid()), str(int(trust_code)), str(memory_limit_bytes)),
            stderr=None,
            env=_environment(),
            start_new_session=True,
        )
        try:
            await asyncio.wait_for(asyncio.shield(process._hello), START_LIMIT_S)
        except BaseException as error:
            await process.kill()
            if isinstance(error, TimeoutError):
                raise PoolBroken(f"a check process did not start in {START_LIMIT_S:.0f} s") from error
            raise
        return process

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._transport is not None
        return self._transport.get_pid()

    @property
    def alive(self) -> bool:
        """Whether it can take a request."""
        return self._transport is not None and not self._ended.done() and self._killed_because is None

    async def run(self, items: Sequence[tuple[Task, str]], time_limit_s: float) -> Round:
        """Check ``items`` one after the other, each for at most ``time_limit_s``.

        Afterwards the process is dead if the round has a failure. Cancelling this leaves it busy: kill it.
        """
        assert self._transport is not None
        self._round, self._expected, self._limit_s = Round(), len(items), time_limit_s
        self._finished = self._loop.create_future()
        if self._ended.done():
            self._fail("the check process had ended")
            return self._round
        self._last_s = self._loop.time()
        self._watch(LOAD_LIMIT_S)
        pipe = self._transport.get_pipe_transport(0)
        assert isinstance(pipe, asyncio.WriteTransport)
        pipe.write(request(items))
        try:
            await self._finished
        finally:
            self._unwatch()
            self._finished = None
        return self._round

    async def stop(self) -> None:
        """End it: kindly, then by force."""
        if self._transport is None:
            return
        pipe = self._transport.get_pipe_transport(0)
        if pipe is not None:
            pipe.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._ended), _STOP_LIMIT_S)
        await self.kill()

    async def kill(self, because: str = "it was stopped") -> None:
        """End it and everything that it started, by force; returns when it is gone."""
        self._kill(because)
        if self._transport is not None:
            await asyncio.shield(self._ended)
            self._transport.close()

    def _kill(self, because: str) -> None:
        if self._ended.done() or self._transport is None:
            return
        self._killed_because = self._killed_because or because
        if self._transport.get_returncode() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)

    # --- the time limit ---------------------------------------------------------------------------------------------

    def _watch(self, limit_s: float) -> None:
        self._unwatch()
        self._deadline = self._loop.time() + limit_s
        self._timer = self._loop.call_at(self._deadline, self._on_deadline)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_deadline(self) -> None:
        if self._loop.time() < self._deadline:  # a reply has moved it on
            self._timer = self._loop.call_at(self._deadline, self._on_deadline)
        elif self._round.loaded:
            self._kill(f"the check took longer than {self._limit_s:g} s and was killed")
        else:
            self._kill(f"building the verifiers took longer than {LOAD_LIMIT_S:g} s and was killed")

    # --- asyncio.SubprocessProtocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The process runs."""
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """It replied."""
        try:
            for value in self._frames.feed(data):
                self._on_value(value)
        except Exception as error:
            self._kill(f"the check process wrote nonsense: {type(error).__name__}: {error}")

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """It closed a pipe, which it only does when it ends; if it does not end, it is of no more use."""
        if fd == 1:
            self._loop.call_later(_PIPE_LIMIT_S, self._kill, "the check process closed its replies")

    def process_exited(self) -> None:
        """It ended; what it wrote before may still be on its way, unless a child of it holds the pipe."""
        self._loop.call_later(_PIPE_LIMIT_S, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        """It ended, and everything it wrote has been read."""
        self._end()

    def _on_value(self, value: object) -> None:
        if value == HELLO:
            if not self._hello.done():
                self._hello.set_result(None)
        elif value == READY:
            self._round.loaded = True
            self._watch(self._limit_s)
        else:
            found = read_reply(value)
            self._round.results[found.index] = found.result
            self._last_s = self._loop.time()
            self._deadline = self._last_s + self._limit_s
            if len(self._round.results) == self._expected and self._finished and not self._finished.done():
                self._finished.set_result(None)

    def _end(self) -> None:
        if self._ended.done():
            return
        self._ended.set_result(None)
        reason = self._killed_because or self._exit_reason()
        if not self._hello.done():
            self._hello.set_exception(PoolBroken(f"a check process did not start: {reason}"))
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        if self._finished is not None and not self._finished.done():
            self._round.failure = reason
            self._round.seconds = self._loop.time() - self._last_s
            self._finished.set_result(None)

    def _exit_reason(self) -> str:
        assert self._transport is not None
        code = self._transport.get_returncode()
        if code == OUT_OF_MEMORY:
            return "the check ran out of memory"
        if code is not None and code < 0:
            return f"the check process was killed by {signal.Signals(-code).name}"
        return f"the check process ended with exit code {code}"


def _environment() -> dict[str, str]:
    """This process's, with its import path and one thread for numeric libraries."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


__all__ = ["LOAD_LIMIT_S", "CheckProcess", "Round"]
