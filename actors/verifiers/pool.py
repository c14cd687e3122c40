"""The pool: every check runs in a process that can be killed, and a check that fails never takes another with it.

A check that hangs is killed at its limit, one that raises or whose process dies is tried again in a fresh process up to
``retries`` times; then it is an infrastructure error with its reason. The other checks of the request go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from actors.verifiers.errors import PoolBroken, VerifierError
from actors.verifiers.process import CheckProcess, Round
from actors.verifiers.result import CheckResult
from messages import Task

RECYCLE_AFTER_CHECKS = 50_000
"""A process is replaced after so many checks, because libraries' caches grow."""
_START_ATTEMPTS = 3
_CLOSED = "the verifier pool is closed"
DEFAULT_MEMORY_LIMIT_BYTES = 4 << 30


@dataclass
class _Slot:
    """A place for one process at a time."""

    process: CheckProcess | None = None
    checks: int = 0


class VerifierPool:
    """Runs checks in child processes.

    Args:
        workers: processes, and so checks at once.
        time_limit_s: what one check may take, in seconds.
        retries: how often a check that failed is tried again.
        trust_code: allow the verifier ``python``.
        memory_limit_bytes: address space of a process (Linux); 0 is no bound.
    """

    def __init__(
        self,
        workers: int,
        time_limit_s: float,
        *,
        retries: int = 1,
        trust_code: bool = False,
        memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
    ) -> None:
        if workers < 1 or time_limit_s <= 0 or retries < 0:
            raise ValueError(
                f"pool of {workers} workers, {time_limit_s} s, {retries} retries: 1, more than 0, 0 at least"
            )
        self.workers = workers
        self.time_limit_s = time_limit_s
        self.retries = retries
        self._trust_code = trust_code
        self._memory_limit_bytes = memory_limit_bytes
        self._slots = [_Slot() for _ in range(workers)]
        self._idle: asyncio.LifoQueue[_Slot] = asyncio.LifoQueue()
        for slot in self._slots:
            self._idle.put_nowait(slot)
        self._closed = False
        self.restarts = 0
        """Processes that were replaced because they hung, died or had to be fresh."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the processes that are up."""
        return tuple(slot.process.pid for slot in self._slots if slot.process is not None and slot.process.alive)

    async def start(self) -> None:
        """Start every process, so that the first check finds it up.

        Raises:
            PoolBroken: processes do not start here.
        """
        await asyncio.gather(*(self._process(slot) for slot in self._slots))

    async def close(self) -> None:
        """End every process. Checks that are still running and new ones raise :class:`VerifierError`."""
        self._closed = True
        await asyncio.gather(*(slot.process.stop() for slot in self._slots if slot.process is not None))

    async def check(self, items: Sequence[tuple[Task, str]]) -> list[CheckResult]:
        """Check responses, one after the other in one process; call it again meanwhile to use the others.

        Args:
            items: tasks and responses; a group shares its task.

        Returns:
            One result per item, in order.

        Raises:
            PoolBroken: processes do not start any more.
            VerifierError: the pool is closed.
        """
        slot = await self._idle.get()
        try:
            return await self._check(slot, items)
        finally:
            self._idle.put_nowait(slot)

    async def _check(self, slot: _Slot, items: Sequence[tuple[Task, str]]) -> list[CheckResult]:
        results: dict[int, CheckResult] = {}
        attempts = dict.fromkeys(range(len(items)), 0)
        waiting, again = list(attempts), list[int]()
        spared = False
        while waiting or again:
            if not waiting:  # what failed comes last, and in a fresh process
                waiting, again = again, []
                await self._discard(slot)
            done = await self._round(slot, [items[index] for index in waiting])
            if done.failure is not None and not done.loaded and not spared:
                spared = True  # the process had died while it waited: that is no check's doing
                continue
            left = []
            for place, index in enumerate(waiting):
                result = done.results.get(place)
                if result is None:
                    left.append(index)
                    continue
                attempts[index] += 1
                results[index] = replace(result, attempts=attempts[index])
                if result.is_broken and not result.permanent and attempts[index] <= self.retries:
                    again.append(index)
            waiting = left
        return [results[index] for index in range(len(items))]

    async def _round(self, slot: _Slot, items: Sequence[tuple[Task, str]]) -> Round:
        """Run checks until they are done or one of them ends the process; that one gets a result that says so."""
        process = await self._process(slot)
        finished = False
        try:
            done = await process.run(items, self.time_limit_s)
            finished = done.failure is None
        finally:
            if not finished:
                await asyncio.shield(self._discard(slot))
        slot.checks += len(items)
        if done.failure is not None:
            if self._closed:
                raise VerifierError(_CLOSED)
            missing = [place for place in range(len(items)) if place not in done.results]
            for place in missing[:1] if done.loaded else missing:
                reason = f"task {items[place][0].id}: {done.failure}"
                done.results[place] = CheckResult.broken(reason, done.seconds)
        return done

    async def _process(self, slot: _Slot) -> CheckProcess:
        if self._closed:
            raise VerifierError(_CLOSED)
        if slot.process is not None and (not slot.process.alive or slot.checks >= RECYCLE_AFTER_CHECKS):
            await self._discard(slot)
        for attempt in range(_START_ATTEMPTS):
            if slot.process is not None:
                break
            try:
                slot.process = await CheckProcess.start(
                    trust_code=self._trust_code, memory_limit_bytes=self._memory_limit_bytes
                )
            except PoolBroken:
                if attempt == _START_ATTEMPTS - 1:
                    raise
        assert slot.process is not None
        return slot.process

    async def _discard(self, slot: _Slot) -> None:
        process, slot.process, slot.checks = slot.process, None, 0
        if process is not None:
            self.restarts += 1
            await process.kill()
