"""What the run's actors publish, written down: ``history/*.jsonl`` and the facts that board and stop rule use.

Steps, evaluations, outcomes, alerts and dead letters are rebuilt from their streams at every start, so a killed
launcher loses nothing. Of heartbeats the bus keeps the last; what was written of earlier ones is read back, so that
counters go on. The last beat of every life of every actor is written.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import structlog
from pydantic import ValidationError

from messages import DeadLetter, Heartbeat, Record, Retention, Topic
from messages.topics import ALERTS, DEAD, EVALUATIONS, HEARTBEATS, OUTCOMES, STEPS, TOPICS
from runtime.bus import Bus
from runtime.cancel import cancel_and_wait
from runtime.errors import BusError
from runtime.facts import Facts, QueueFacts

REBUILT = (STEPS, EVALUATIONS, OUTCOMES, ALERTS, DEAD)
BEAT_EVERY_S = 5.0
QUEUES_EVERY_S = 2.0
QUEUES = tuple(topic for topic in TOPICS if topic.retention is Retention.WORK)

log = structlog.get_logger()


class Recorder:
    """Follows a run and writes down what happens.

    Args:
        bus: a connection that may read.
        history: folder of the files; None follows without writing, as somebody who only looks.
        facts: what is known, kept up to date.
    """

    def __init__(self, bus: Bus, history: Path | None, facts: Facts | None = None) -> None:
        self.bus = bus
        self.history = history
        self.facts = facts or Facts()
        self._files: dict[str, IO[str]] = {}
        self._unwritten: set[str] = set()
        self._beats: dict[str, _LastBeats] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._read_to: dict[str, int] = {}
        self._read = asyncio.Condition()
        self._polled = False

    async def start(self) -> None:
        """Read back the heartbeats of earlier launchers and begin to follow."""
        if self.history is not None:
            self._open_files(self.history)
        follows = [(topic, self._follow(topic)) for topic in (*REBUILT, HEARTBEATS)]
        for topic, follow in follows:
            self._spawn(follow, f"record-{topic.name}")
        self._spawn(self._poll_queues(), "record-queues")

    def _open_files(self, history: Path) -> None:
        history.mkdir(parents=True, exist_ok=True)
        beats = history / f"{HEARTBEATS.name}.jsonl"
        for beat in read_heartbeats(beats):
            self.facts.on(beat)
        self._files[HEARTBEATS.name] = beats.open("a", encoding="utf-8")
        for topic in REBUILT:
            self._files[topic.name] = (history / f"{topic.name}.jsonl").open("w", encoding="utf-8")

    async def catch_up(self, timeout_s: float = 30.0) -> None:
        """Wait until everything that is now in the recorded streams has been read.

        Raises:
            BusError: it took longer than ``timeout_s``.
        """
        goals = {topic.name: (await self.bus.stream_state(topic)).last_seq for topic in REBUILT}
        try:
            async with asyncio.timeout(timeout_s), self._read:
                await self._read.wait_for(lambda: all(self._read_to.get(name, 0) >= goals[name] for name in goals))
        except TimeoutError as error:
            late = {name: (self._read_to.get(name, 0), goal) for name, goal in goals.items()}
            raise BusError(f"the history was not read to its end in {timeout_s:.0f} s: {late}") from error

    async def settle(self, timeout_s: float = 3.0) -> None:
        """Wait until heartbeats and queue depths have been seen once, or for ``timeout_s`` when there are none."""
        try:
            async with asyncio.timeout(timeout_s), self._read:
                await self._read.wait_for(lambda: self._read_to.get(HEARTBEATS.name, 0) > 0 and self._polled)
        except TimeoutError:
            return

    async def stop(self) -> None:
        """Stop following and close the files."""
        await cancel_and_wait(self._tasks)
        for last in self._beats.values():
            if last.newest is not last.written:
                self._write(HEARTBEATS, last.newest, last.newest.sent_s)
        for name, file in self._files.items():
            try:
                file.close()
            except OSError as error:
                log.error("history not written to its end", file=name, error=str(error))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _follow(self, topic: Topic) -> None:
        async for received in self.bus.follow(topic, "all"):
            for record in received.records:
                self._take(topic, record, received.time_s)
            self._flush(topic)
            async with self._read:
                self._read_to[topic.name] = received.seq
                self._read.notify_all()

    def _take(self, topic: Topic, record: Record, stored_s: float) -> None:
        new = self.facts.on(record)
        if isinstance(record, Heartbeat):
            self._take_beat(record)
        elif new:
            self._write(topic, record, stored_s)

    def _take_beat(self, beat: Heartbeat) -> None:
        """A beat is written when the last written one is old, when its state changed, and when it ended a life."""
        last = self._beats.setdefault(beat.instance, _LastBeats(beat))
        if _life(last.newest) != _life(beat) and last.newest is not last.written:
            self._write(HEARTBEATS, last.newest, last.newest.sent_s)
        last.newest, written = beat, last.written
        if written is None or written.state is not beat.state or beat.sent_s - written.sent_s >= BEAT_EVERY_S:
            self._write(HEARTBEATS, beat, beat.sent_s)
            last.written = beat

    def _write(self, topic: Topic, record: Record, stored_s: float) -> None:
        if topic.name in self._files:
            self._try(topic, lambda file: file.write(as_line(record, stored_s)))

    def _flush(self, topic: Topic) -> None:
        if topic.name in self._files:
            self._try(topic, lambda file: file.flush())

    def _try(self, topic: Topic, work: Callable[[IO[str]], object]) -> None:
        """A disk without room costs lines of the history, which are made again at the next start; never the facts."""
        try:
            work(self._files[topic.name])
            self._unwritten.discard(topic.name)
        except OSError as error:
            if topic.name not in self._unwritten:
                log.error("history not written", file=topic.name, error=str(error))
            self._unwritten.add(topic.name)

    async def _poll_queues(self) -> None:
        while True:
            try:
                for topic in QUEUES:
                    state = await self.bus.stream_state(topic)
                    self.facts.queues[topic.name] = QueueFacts(state.messages, state.bytes)
                self._polled = True
                async with self._read:
                    self._read.notify_all()
            except BusError as error:
                log.warning("queue depths not known", error=str(error))
            await asyncio.sleep(QUEUES_EVERY_S)


@dataclass
class _LastBeats:
    """The newest beat of an instance and the last one that was written."""

    newest: Heartbeat
    written: Heartbeat | None = None


def _life(beat: Heartbeat) -> tuple[int, float]:
    return beat.pid, beat.started_s


def as_line(record: Record, stored_s: float) -> str:
    """A record as one line of JSON with the Unix time at which the bus stored it; no payload of a dead letter."""
    left_out = {"payload"} if isinstance(record, DeadLetter) else set()
    document: Mapping[str, Any] = record.model_dump(mode="json", exclude=left_out)
    return json.dumps({**document, "stored_s": round(stored_s, 3)}, separators=(",", ":")) + "\n"


def read_heartbeats(path: Path) -> list[Heartbeat]:
    """Heartbeats as they were written; a line that a crash cut off is passed over."""
    if not path.exists():
        return []
    beats = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                beats.append(Heartbeat.model_validate_json(line))
            except ValidationError:
                continue
    return beats
