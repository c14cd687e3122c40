"""Publishing tasks: each is stored once, however often it is published, and another task never takes its place.

A task is known by its split, domain and id, which make its subject; the tasks stream keeps one message per subject and
refuses a second one. What is refused is compared with what is stored: equal is fine, other content is a conflict.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import nats.js.errors

from messages import MessageError, Record, Task, decode, derive, encode, headers
from messages.topics import TASKS
from ops import semconv
from runtime.bus import Bus
from runtime.errors import BusError
from runtime.task_files import BadLine, TaskLine

CONCURRENCY = 64
MAX_LISTED = 20
DEADLINE_S = 60.0
"""How long one task is tried while the bus is away or its stream is full."""
_MAX_ATTEMPTS = 3


@dataclass
class PublishReport:
    """What became of the lines: counts, and the first ``MAX_LISTED`` problems as they stood in the files."""

    published: int = 0
    already_there: int = 0
    conflicts: int = 0
    rejected: int = 0
    problems: list[BadLine] = field(default_factory=list)

    @property
    def lines(self) -> int:
        """Lines that were dealt with."""
        return self.published + self.already_there + self.conflicts + self.rejected

    @property
    def refused(self) -> int:
        """Lines that are no task on the bus now."""
        return self.conflicts + self.rejected

    def reject(self, bad: BadLine) -> None:
        """Count a line that is no task."""
        self.rejected += 1
        self._list(bad)

    def conflict(self, bad: BadLine) -> None:
        """Count a task whose id is another task's."""
        self.conflicts += 1
        self._list(bad)

    def _list(self, bad: BadLine) -> None:
        if len(self.problems) < MAX_LISTED:
            self.problems.append(bad)


async def publish_tasks(
    bus: Bus,
    lines: Iterable[Task | TaskLine | BadLine],
    progress: Callable[[PublishReport], None] | None = None,
) -> PublishReport:
    """Publish tasks, reading ``lines`` only as fast as they are stored.

    Args:
        bus: with the credentials of a person.
        lines: tasks, with or without the place that they come from; bad lines are counted and go no further.
        progress: called after each line with the report so far.

    Raises:
        BusFull: the tasks stream is full.
        BusError: the bus does not answer; what was published before stays.
    """
    report = PublishReport()
    shared = iter(lines)

    async def drain() -> None:
        for line in shared:
            await _deal_with(bus, line, report)
            if progress is not None:
                progress(report)

    # an empty context each: a task's trace begins here, whatever span publishing itself is part of
    loop = asyncio.get_running_loop()
    workers = [loop.create_task(drain(), context=contextvars.Context()) for _ in range(CONCURRENCY)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return report


async def _deal_with(bus: Bus, line: Task | TaskLine | BadLine, report: PublishReport) -> None:
    if isinstance(line, BadLine):
        report.reject(line)
        return
    where, task = (line.where, line.task) if isinstance(line, TaskLine) else (f"task {line.id}", line)
    payload = encode([task])
    for _ in range(_MAX_ATTEMPTS):
        if await _store(bus, task, payload):
            report.published += 1
            return
        try:
            stored = await bus.last(TASKS, *_key(task))
        except MessageError as error:
            report.conflict(BadLine(where, f"task id {task.id!r} already exists and can not be read: {error}"))
            return
        if stored is None:
            continue  # it was deleted in between
        if _same(stored.records, payload, task):
            report.already_there += 1
        else:
            report.conflict(BadLine(where, f"task id {task.id!r} already exists with other content"))
        return
    raise BusError(f"{where}: task {task.id!r} is refused as already there, but is not")


async def _store(bus: Bus, task: Task, payload: bytes) -> bool:
    """Publish; False when the subject is taken."""
    subject = TASKS.subject(bus.run, *_key(task))
    found = {headers.SCHEMA: task.schema_header()}
    attributes = {semconv.RL_TASK_ID: task.id, semconv.RL_DOMAIN: task.domain, semconv.RL_RUN: bus.run}
    with bus.telemetry.producer_span(TASKS.name, task.id, len(payload), subject=subject, attributes=attributes):
        bus.telemetry.inject(found)
        try:
            await bus.publish_bytes(subject, payload, found, TASKS.stream(bus.run), DEADLINE_S)
        except nats.js.errors.APIError as error:
            if not is_taken(error):
                raise BusError(f"task {task.id!r}: the bus refuses it: {error.description or error}") from error
            return False
    return True


def _key(task: Task) -> tuple[str, str, str]:
    return task.split, task.domain, derive(task.id)


def is_taken(error: nats.js.errors.APIError) -> bool:
    """Whether a publish was refused because its subject has its message (a stream that is full has the same code)."""
    return "per subject" in (error.description or "")


def _same(stored: list[Record], payload: bytes, task: Task) -> bool:
    if encode(stored) == payload:
        return True
    try:  # as the wire has it: a tuple is a list there
        return stored == decode(task.schema_header(), payload)
    except MessageError:
        return False


__all__ = ["MAX_LISTED", "PublishReport", "publish_tasks"]
