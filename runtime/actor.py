"""The actor: typed handlers in, messages out; everything between a handler and the bus is done here and in the inbox.

A subclass names what it works on and what it follows::

    class Verifier(Actor):
        kind = "verifier"

        @works(ROLLOUTS)
        async def on_rollouts(self, delivery: Delivery[Rollout]) -> list[Out]: ...

A handler may raise ``Retry`` (deliver again after a back-off), ``Rejected`` (can never be handled: dead letter), or
anything else (a bug: dead letter with the traceback). Its outputs are published under ids derived from the input's, and
only then is the input acknowledged; so a repeat of anything, after any crash, stores nothing twice.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import structlog

from messages import ActorState, Alert, Record, Topic
from messages.topics import ALERTS
from ops.telemetry import Telemetry
from runtime.bus import Bus
from runtime.clock import Clock, SystemClock
from runtime.config import RunConfig
from runtime.errors import BusError

log = structlog.get_logger()

R = TypeVar("R", bound=Record)
Handler = TypeVar("Handler", bound=Callable[..., Any])


@dataclass(frozen=True)
class Delivery(Generic[R]):
    """One input: a parcel of records of one schema with where it came from.

    Attributes:
        id: what the outputs' ids are derived from; the same for every delivery of the same message.
        deliveries: 1 for the first, more after a handler's death or a retry.
        traceparent: W3C context that the message carries, or "".
    """

    records: list[R]
    id: str
    seq: int
    subject: str
    headers: dict[str, str]
    deliveries: int
    stored_s: float

    @property
    def traceparent(self) -> str:
        """W3C trace context of the message, or ""."""
        return self.headers.get("traceparent", "")


@dataclass(frozen=True)
class Out:
    """One output: a parcel for a topic. ``group_id`` becomes a header, so even an unreadable parcel is accounted."""

    topic: Topic
    records: Sequence[Record]
    key: tuple[str, ...]
    group_id: str | None = None
    msg_id: str | None = None
    """Only where the id must be the same from whichever input it results; derived from the input otherwise."""


@dataclass(frozen=True)
class Work:
    """A handler of a work topic, as declared by :func:`works`."""

    topic: Topic
    method: str
    max_fetch_bytes: int


@dataclass(frozen=True)
class Followed:
    """A handler of a followed topic, as declared by :func:`follows`."""

    topic: Topic
    method: str
    start: str


def works(topic: Topic, *, max_fetch_bytes: int = 8 << 20) -> Callable[[Handler], Handler]:
    """Declare an ``async (self, Delivery) -> Sequence[Out]`` method as the handler of a work topic."""

    def mark(handler: Handler) -> Handler:
        handler.__busrl_work__ = Work(topic, handler.__name__, max_fetch_bytes)  # type: ignore[attr-defined]
        return handler

    return mark


def follows(topic: Topic, start: str = "last") -> Callable[[Handler], Handler]:
    """Declare an ``async (self, Received) -> None`` method that sees every parcel of a topic in order."""

    def mark(handler: Handler) -> Handler:
        handler.__busrl_follow__ = Followed(topic, handler.__name__, start)  # type: ignore[attr-defined]
        return handler

    return mark


@dataclass
class ActorContext:
    """What an actor is given; nothing else reaches it from outside.

    Attributes:
        run: the whole run file, resolved.
        instance: name of this process among all of the run, such as ``generator-0``.
        index, count: this process among those of its kind.
        folder: the run's folder on this machine, or a private one where the run lives elsewhere.
        rng: source of jitter; never of anything that must be the same again.
    """

    run: RunConfig
    bus: Bus
    telemetry: Telemetry
    instance: str
    index: int
    count: int
    folder: Path
    host: str
    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.Random)


class Actor:
    """Base of all actors; :class:`runtime.life.Life` runs it."""

    kind: ClassVar[str]
    singleton: ClassVar[bool] = False
    """Exactly one lives: at its start it takes back at once what a dead predecessor held."""

    def __init__(self, context: ActorContext) -> None:
        self.context = context
        self.bus = context.bus
        self.clock = context.clock
        self.counters: defaultdict[str, float] = defaultdict(float)
        self.state = ActorState.STARTING
        self.background: set[asyncio.Task[None]] = set()
        self.spawned = asyncio.Event()
        self.draining = asyncio.Event()
        self.unpaused = asyncio.Event()
        self.unpaused.set()
        self.log = structlog.get_logger().bind(actor=self.kind, instance=context.instance)

    # --- what a subclass may define ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load what is needed; the actor is not ready before this returns."""

    async def drain(self) -> None:
        """Nothing new comes in from now on: finish or give back what handlers hold."""

    async def stop(self) -> None:
        """Release what :meth:`start` took."""

    def concurrency(self, topic: Topic) -> int:
        """Inputs of a topic that may be handled at once; the bound of everything this actor holds."""
        return 64

    def gauges(self) -> dict[str, float]:
        """What the heartbeat says of now."""
        return {}

    # --- what a subclass may use ------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a background task; its failure is the actor's failure (the supervisor restarts it)."""
        task = asyncio.create_task(work, name=name)
        self.background.add(task)
        self.spawned.set()

    async def send(self, out: Out, input_id: str) -> None:
        """Publish an output outside a handler, under an id derived from ``input_id``, until it is stored."""
        await self.bus.publish(
            out.topic,
            out.records,
            *out.key,
            msg_id=out.msg_id or input_id,
            extra_headers={"Busrl-Group": out.group_id} if out.group_id else None,
            deadline_s=None,
        )

    async def alert(
        self, name: str, severity: Literal["info", "warning", "critical"], summary: str, **labels: str
    ) -> None:
        """Tell people. An alert that can not be published is logged; it never stops the work."""
        self.log.warning("alert", alert=name, severity=severity, summary=summary, **labels)
        record = Alert(
            name=name,
            severity=severity,
            summary=summary[:1024],
            actor=self.context.instance,
            raised_s=self.clock.now(),
            labels=labels,
        )
        try:
            await self.bus.publish(ALERTS, [record], name, deadline_s=5)
        except BusError as error:
            self.log.error("alert not published", alert=name, error=str(error))

    @classmethod
    def declared_work(cls) -> list[Work]:
        """The work handlers of this class."""
        return cls._declared("__busrl_work__")

    @classmethod
    def declared_follows(cls) -> list[Followed]:
        """The follow handlers of this class."""
        return cls._declared("__busrl_follow__")

    @classmethod
    def _declared(cls, mark: str) -> list[Any]:
        found = (getattr(getattr(cls, name, None), mark, None) for name in dir(cls))
        return [item for item in found if item is not None]


__all__ = ["Actor", "ActorContext", "Delivery", "Followed", "Out", "Work", "follows", "works"]
