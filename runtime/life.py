"""The life of an actor: start, ready, running, draining, stopped. Heartbeats, health answers and orders live here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time

import nats.errors
import psutil
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from messages import ActorState, Control, DeadLetter, DeadReason, Heartbeat, derive, encode
from messages.topics import CONTROL, DEAD, HEARTBEATS
from ops import semconv
from ops.heartbeats import HeartbeatMeters
from runtime.actor import Actor, Followed
from runtime.cancel import cancel_and_wait
from runtime.errors import BusError
from runtime.inbox import Inbox
from runtime.parcel import Received
from runtime.permissions import health_subject

log = structlog.get_logger()

BEAT_S = 1.0
LAG_PROBE_S = 0.1
DRAIN_S = 20.0


class Life:
    """Runs one actor in this process until it is told to drain, or until something of it fails."""

    def __init__(self, actor: Actor, *, drain_s: float = DRAIN_S) -> None:
        self.actor = actor
        self._drain_s = drain_s
        self._inboxes = [Inbox(actor, work) for work in actor.declared_work()]
        self._started_s = actor.clock.now()
        self._loop_lag_s = 0.0
        self._meters = HeartbeatMeters(actor.context.telemetry.meters)
        self._process = psutil.Process()  # type: ignore[no-untyped-call]

    async def run(self) -> None:
        """Live.

        Raises:
            Exception: whatever made the actor fail; it has been drained as far as that was possible.
        """
        actor = self.actor
        beats = [asyncio.create_task(self._beat(), name="beat"), asyncio.create_task(self._probe(), name="probe")]
        tasks: set[asyncio.Task[None]] = set()
        health: Subscription | None = None
        try:
            health = await self._answer_health()
            if await self._start():
                actor.state = ActorState.RUNNING
                log.info("running")
                tasks = {asyncio.create_task(inbox.run(), name=f"inbox-{i}") for i, inbox in enumerate(self._inboxes)}
                tasks |= {asyncio.create_task(self._follow(f), name=f"follow-{f.topic.name}") for f in self._followed()}
                await self._until_drained_or_failed(tasks)
        finally:
            try:
                await self._wind_down(tasks)
            finally:
                actor.state = ActorState.STOPPED
                await self._send_beat()
                await cancel_and_wait(beats)
                if health is not None:
                    with contextlib.suppress(nats.errors.Error):
                        await health.unsubscribe()
                log.info("stopped")

    async def _start(self) -> bool:
        """Start the actor; False when it was told to drain before it was ready."""
        starting = asyncio.create_task(self.actor.start(), name="start")
        drain = asyncio.create_task(self.actor.draining.wait(), name="drain")
        try:
            await asyncio.wait({starting, drain}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return False
            starting.result()  # raises what it failed with
            return True
        finally:
            starting.cancel()
            drain.cancel()
            await asyncio.gather(starting, drain, return_exceptions=True)

    def _followed(self) -> list[Followed]:
        return [*self.actor.declared_follows(), Followed(CONTROL, "", "new")]

    async def _until_drained_or_failed(self, tasks: set[asyncio.Task[None]]) -> None:
        actor = self.actor
        drain = asyncio.create_task(actor.draining.wait(), name="drain")
        try:
            while not drain.done():
                actor.spawned.clear()
                more = asyncio.create_task(actor.spawned.wait(), name="spawned")
                watched = {drain, more, *tasks, *actor.background}
                done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                more.cancel()
                for task in done & {*tasks, *actor.background}:
                    tasks.discard(task)
                    actor.background.discard(task)
                    task.result()  # raises what it failed with
        finally:
            drain.cancel()

    async def _wind_down(self, tasks: set[asyncio.Task[None]]) -> None:
        actor = self.actor
        ready = actor.state is not ActorState.STARTING
        actor.state = ActorState.DRAINING
        actor.draining.set()
        log.info("draining", in_flight=sum(inbox.in_flight for inbox in self._inboxes))
        inbox_tasks = [task for task in tasks if task.get_name().startswith("inbox")]
        actor.unpaused.set()
        for task in inbox_tasks:
            task.cancel()  # nothing new; what had not begun is given back
        if inbox_tasks:
            await asyncio.wait(inbox_tasks, timeout=5)
        if ready:
            try:
                await asyncio.wait_for(actor.drain(), self._drain_s)
            except Exception as error:
                log.error("drain failed", error=repr(error))
        await asyncio.gather(*(inbox.finish(self._drain_s) for inbox in self._inboxes), return_exceptions=True)
        await cancel_and_wait((*tasks, *actor.background))
        try:
            await actor.stop()
        except Exception as error:
            if ready:
                raise
            log.warning("stop failed after an unfinished start", error=repr(error))

    # --- followed topics --------------------------------------------------------------------------------------------

    async def _follow(self, followed: Followed) -> None:
        handler = getattr(self.actor, followed.method) if followed.method else self._on_control
        async with contextlib.aclosing(self.actor.bus.follow(followed.topic, followed.start)) as parcels:
            async for received in parcels:
                try:
                    await handler(received)
                except Exception as error:  # one bad message must not end the following
                    log.exception("follow handler failed", topic=followed.topic.name, seq=received.seq)
                    await self._follow_dead(followed, received, error)

    async def _follow_dead(self, followed: Followed, received: Received, error: Exception) -> None:
        self.actor.counters["dead"] += 1
        letter = DeadLetter(
            id=derive("dead", followed.topic.stream(self.actor.bus.run), received.seq, self.actor.context.instance),
            topic=followed.topic.name,
            subject=received.subject,
            stream_seq=received.seq,
            actor=self.actor.context.instance,
            reason=DeadReason.BUG,
            error=f"{type(error).__name__}: {error}"[:2048],
            deliveries=1,
            headers=dict(received.headers),
            payload=encode(received.records),
            died_s=self.actor.clock.now(),
        )
        await self.actor.bus.publish(DEAD, [letter], followed.topic.name, msg_id=letter.id, deadline_s=30)

    async def _on_control(self, received: Received) -> None:
        order: Control = received.record
        if order.kind not in (None, self.actor.kind):
            return
        log.info("order", command=order.command)
        if order.command == "drain":
            self.actor.draining.set()
        elif order.command == "pause":
            self.actor.state = ActorState.PAUSED
            self.actor.unpaused.clear()
        elif self.actor.state is ActorState.PAUSED:
            self.actor.state = ActorState.RUNNING
            self.actor.unpaused.set()

    # --- heart ------------------------------------------------------------------------------------------------------

    def heartbeat(self) -> Heartbeat:
        """How the actor fares now."""
        actor, bus = self.actor, self.actor.bus
        gauges = {**self._gauges(), "bus_s": bus.cost.total_s, "published": bus.cost.published}
        lag_s, self._loop_lag_s = self._loop_lag_s, 0.0
        return Heartbeat(
            kind=actor.kind,
            instance=actor.context.instance,
            host=actor.context.host,
            pid=os.getpid(),
            state=actor.state,
            started_s=self._started_s,
            sent_s=actor.clock.now(),
            in_flight=sum(inbox.in_flight for inbox in self._inboxes),
            loop_lag_s=lag_s,
            rss_bytes=self._process.memory_info().rss,
            counters=dict(actor.counters),
            gauges=gauges,
        )

    def _gauges(self) -> dict[str, float]:
        try:
            return self.actor.gauges()
        except Exception:  # what an actor can not say of itself must not make it look dead
            log.exception("gauges failed")
            return {}

    async def _beat(self) -> None:
        while True:
            await self._send_beat()
            await asyncio.sleep(BEAT_S)

    async def _send_beat(self) -> None:
        """A beat that is lost says by its absence what it has to say."""
        context, beat = self.actor.context, self.heartbeat()
        self._meters.take(beat)
        try:
            await self.actor.bus.publish(HEARTBEATS, [beat], self.actor.kind, context.instance, deadline_s=BEAT_S)
        except (BusError, nats.errors.Error) as error:
            log.warning("heartbeat not sent", error=str(error))

    async def _probe(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(LAG_PROBE_S)
            late_s = time.perf_counter() - before - LAG_PROBE_S
            self._loop_lag_s = max(self._loop_lag_s, late_s)
            self.actor.context.telemetry.meters.loop_lag.record(max(0.0, late_s), {semconv.RL_ACTOR: self.actor.kind})

    async def _answer_health(self) -> Subscription:
        async def answer(message: Msg) -> None:
            await message.respond(encode([self.heartbeat()]))

        context = self.actor.context
        subject = health_subject(self.actor.bus.run, self.actor.kind, context.instance)
        return await self.actor.bus.nc.subscribe(subject, cb=answer)
