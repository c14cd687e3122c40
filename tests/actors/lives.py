"""One actor on a real server, in the test's own process: it lives, is drained, or dies as if by ``kill -9``."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from messages import ActorState, Topic, WeightManifest, WeightSource, derive, headers
from messages.topics import WEIGHTS
from ops.telemetry import disabled
from runtime.actor import Actor, ActorContext
from runtime.bus import Bus
from runtime.config import RunConfig
from runtime.life import Life
from runtime.parcel import Received
from runtime.runfile import parse
from runtime.weights import machine_id, weights_folder
from tests.conftest import RUN, LiveBus

PATIENCE_S = 30.0
"""A wait that takes so long has failed."""

A = TypeVar("A", bound=Actor)

BASE = """
[run]
name = "{run}"
{run_extra}
[policy]
path = "policy"
device = "cpu"
[training]
group_size = 2
groups_per_batch = 2
{training}
[sampling]
max_tokens = 4
[domains.d]
{more}
"""


def run_config(folder: Path, *, run: str = "", training: str = "", more: str = "") -> RunConfig:
    """A run file for one domain ``d``, groups of two and batches of two groups; parts of it can be added to."""
    policy = folder / "policy"
    if not (policy / "config.json").exists():
        policy.mkdir(parents=True, exist_ok=True)
        (policy / "config.json").write_text("{}")  # for actors that never load it
    return parse(BASE.format(run=RUN, run_extra=run, training=training, more=more), "run.toml", folder)


@dataclass
class Living(Generic[A]):
    """An actor that is at work."""

    actor: A
    bus: Bus
    task: asyncio.Task[None]

    async def drain(self) -> None:
        """As by SIGTERM."""
        self.actor.draining.set()
        await asyncio.wait_for(self.task, PATIENCE_S)

    async def crash(self) -> None:
        """As by ``kill -9``: its connection is cut, so that nothing it still does reaches anybody."""

        async def nothing() -> None:
            """A killed process does not drain."""

        self.actor.drain = nothing  # type: ignore[method-assign]
        await self.bus.nc.close()
        self.task.cancel()
        await asyncio.wait({self.task}, timeout=PATIENCE_S)


@dataclass
class Stage:
    """Where actors are put on: a server, a run file, and a connection that may do everything."""

    live: LiveBus
    folder: Path
    bus: Bus
    config: RunConfig
    alive: list[Living[Any]] = field(default_factory=list)

    async def start(self, actor: type[A], config: RunConfig | None = None) -> Living[A]:
        """A new life of an actor, once it is at work."""
        bus = await self.live.connect(actor.kind)
        context = ActorContext(
            config or self.config, bus, disabled(), f"{actor.kind}-0", 0, 1, self.folder, machine_id()
        )
        made = actor(context)
        task = asyncio.create_task(Life(made, drain_s=2.0).run(), name=actor.kind)
        living = Living(made, bus, task)
        self.alive.append(living)
        await until(lambda: made.state is ActorState.RUNNING or task.done())
        if task.done():
            task.result()
        return living

    async def put(self, topic: Topic, records: list[Any], *key: str, msg_id: str | None = None) -> int:
        """Publish a parcel as whoever may; returns its sequence."""
        groups = dict.fromkeys(group for record in records for group in groups_of(record))
        extra = {headers.GROUP: ",".join(groups)} if groups else None
        return (await self.bus.publish(topic, records, *key, msg_id=msg_id, extra_headers=extra)).seq

    async def announce(self, epoch: int, version: int) -> None:
        """A version that nobody can fetch, for those who only count."""
        manifest = WeightManifest(
            epoch=epoch,
            version=version,
            digest=f"xxh3-128:{0:032x}",
            size_bytes=1,
            sources=(WeightSource(kind="file", host="nowhere", location="/nowhere"),),
            published_s=1.0,
        )
        await self.bus.publish(WEIGHTS, [manifest], str(epoch), msg_id=derive("weights", epoch, version))

    async def parcels(self, topic: Topic, n: int, start: int = 1) -> list[Received]:
        """The next ``n`` parcels of a topic that does not forget."""
        found: list[Received] = []
        async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(self.bus.follow(topic, start)) as parcels:
            async for received in parcels:
                found.append(received)
                if len(found) == n:
                    return found
        raise AssertionError("a followed topic never ends")

    async def stored(self, topic: Topic, n: int) -> list[Received]:
        """All parcels on a work topic, once there are ``n``."""
        await self.until_stored(topic, n)
        state = await self.bus.stream_state(topic)
        found = [await self.bus.get(topic, seq) for seq in range(state.first_seq, state.last_seq + 1)]
        return [received for received in found if received is not None]

    async def until_stored(self, topic: Topic, n: int) -> None:
        """Wait until a topic holds exactly ``n`` parcels."""
        await until(lambda: self._holds(topic, n), f"{topic.name} to hold {n}")

    async def _holds(self, topic: Topic, n: int) -> bool:
        return (await self.bus.stream_state(topic)).messages == n


def groups_of(record: Any) -> list[str]:
    """The groups that a record is about."""
    if hasattr(record, "experiences"):
        return [experience.rollout.group_id for experience in record.experiences]
    found = getattr(getattr(record, "rollout", record), "group_id", None)
    return [found] if found else []


async def until(holds: Callable[[], bool] | Callable[[], Awaitable[bool]], what: str = "it to be so") -> None:
    """Wait for something that no message tells; fails after ``PATIENCE_S``."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answer = holds()
                if await answer if isinstance(answer, Awaitable) else answer:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}") from None


@contextlib.asynccontextmanager
async def staged(live: LiveBus, folder: Path, config: RunConfig) -> AsyncIterator[Stage]:
    """A stage whose actors are all gone afterwards."""
    stage = Stage(live, folder, live.open[0], config)
    try:
        yield stage
    finally:
        for living in stage.alive:
            if not living.task.done():
                await living.crash()
            if not living.task.cancelled():
                living.task.exception()
        shutil.rmtree(weights_folder(folder), ignore_errors=True)  # a learner's versions may lie in shared memory
