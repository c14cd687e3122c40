"""The inbox of one work topic: fetch, decode, handle, publish, acknowledge; or retry, or dead letter. In that order.

What it guarantees: an input is acknowledged only after all its outputs are stored; an input that kills its handler is
given up after ``MAX_DELIVERIES``; long work is kept alive and stops being so when its handler ends; no more inputs are
held than the actor's concurrency allows, and no fetch asks for more bytes than its budget.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Sequence
from typing import Any

import nats.errors
import structlog
from nats.aio.msg import Msg
from opentelemetry import trace

from messages import DeadLetter, DeadReason, MessageError, derive, headers
from messages.topics import DEAD
from ops import semconv
from runtime import blobs
from runtime.actor import Actor, Delivery, Out, Work
from runtime.backoff import Backoff
from runtime.declare import declare_consumer
from runtime.errors import BlobGone, BusError, Rejected, Retry
from runtime.pull import ConsumerGone, PullRequests

log = structlog.get_logger()

MAX_DELIVERIES = 5
"""Deliveries of one message before it is given up: this many handlers died on it or asked for a retry."""
FETCH_EXPIRES_S = 2.0
GONE_S = 0.5
"""Pause before a consumer that is gone is declared again."""
SETTLE_S = 5.0
RETRY = Backoff(first_s=0.5, most_s=30.0)


class Inbox:
    """Runs one work handler of an actor."""

    def __init__(self, actor: Actor, work: Work) -> None:
        self._actor = actor
        self._bus = actor.bus
        self._work = work
        self._handler = getattr(actor, work.method)
        self._stream = work.topic.stream(actor.bus.run)
        self._durable = work.topic.durable(actor.kind)
        self._limit = actor.concurrency(work.topic)
        self._ended = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], Msg] = {}
        self._ids: set[str] = set()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        """Inputs being handled."""
        return len(self._tasks)

    async def run(self) -> None:
        """Fetch and handle until the actor drains; cancelled, fetch no more and give back what was not begun."""
        self._keeper = asyncio.create_task(self._keep_alive(), name=f"keep-{self._work.topic.name}")
        pull = PullRequests(self._bus, self._stream, self._durable)
        try:
            if self._actor.singleton:
                await declare_consumer(self._bus, self._work.topic, self._actor.kind, afresh=True)
            while not self._actor.draining.is_set():
                if not self._actor.unpaused.is_set():
                    await _give_back(await pull.close())
                    await self._actor.unpaused.wait()
                free = await self._room()
                try:
                    messages = await pull.fetch(free, self._work.max_fetch_bytes, FETCH_EXPIRES_S)
                except ConsumerGone as gone:
                    await self._declare_again(gone)
                    continue
                if not self._actor.unpaused.is_set():
                    await _give_back(messages)
                    continue
                for message in messages:
                    self._begin(message)
        finally:
            await _give_back(await pull.close())

    async def finish(self, limit_s: float) -> None:
        """Wait for the handlers; what is not finished in ``limit_s`` is given back for another to do."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=limit_s)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=5)
        if self._keeper is not None:
            self._keeper.cancel()

    def _begin(self, message: Msg) -> None:
        """Handle a message, unless it came again while it is being handled (its consumer was made anew)."""
        delivery_id = self._id(message)
        if delivery_id in self._ids:
            log.warning("delivered again while it is handled", topic=self._work.topic.name, id=delivery_id)
            return
        task = asyncio.create_task(self._handle(message))
        self._tasks[task] = message
        self._ids.add(delivery_id)
        task.add_done_callback(self._done)

    def _id(self, message: Msg) -> str:
        return (message.headers or {}).get(headers.MSG_ID) or f"{self._stream}:{message.metadata.sequence.stream}"

    async def _room(self) -> int:
        while len(self._tasks) >= self._limit:
            self._ended.clear()
            await self._ended.wait()
        return self._limit - len(self._tasks)

    async def _declare_again(self, gone: ConsumerGone) -> None:
        log.warning("consumer gone, declaring it again", error=str(gone))
        await asyncio.sleep(GONE_S)
        try:
            await declare_consumer(self._bus, self._work.topic, self._actor.kind)
        except BusError as error:
            log.error("consumer not declared", error=str(error))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._ids.discard(self._id(self._tasks.pop(task)))
        self._ended.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("inbox task failed", error=repr(task.exception()))

    async def _keep_alive(self) -> None:
        interval_s = self._work.topic.ack_wait_s / 3
        while True:
            await asyncio.sleep(interval_s)
            for task, message in list(self._tasks.items()):
                if not task.done():
                    await _answer(message.in_progress())

    async def _handle(self, message: Msg) -> None:
        actor, metadata = self._actor, message.metadata
        found = dict(message.headers or {})
        delivery_id = self._id(message)
        actor.counters["handled"] += 1
        if metadata.num_delivered > 1:
            actor.counters["redelivered"] += 1
        topic = self._work.topic
        labels = {semconv.RL_TOPIC: topic.name}
        meters = actor.context.telemetry.meters
        meters.queue_wait.record(max(0.0, actor.clock.now() - metadata.timestamp.timestamp()), labels)
        began = time.perf_counter()
        telemetry = actor.context.telemetry
        with telemetry.consumer_span(
            topic.name,
            delivery_id,
            len(message.data),
            telemetry.extract(found),
            self._durable,
            subject=message.subject,
        ) as span:
            try:
                if metadata.num_delivered > MAX_DELIVERIES:
                    raise _Exhausted(f"given up after {metadata.num_delivered - 1} deliveries that did not finish")
                records = await self._bus.unpack(message.data, found, topic)
                delivery = Delivery[Any](
                    records,
                    delivery_id,
                    metadata.sequence.stream,
                    message.subject,
                    found,
                    metadata.num_delivered,
                    metadata.timestamp.timestamp(),
                )
                outputs: Sequence[Out] = await self._handler(delivery)
                await self._publish(outputs, delivery_id)
                started = time.perf_counter()
                await self._settle(message, found.get(headers.CLAIM))
                self._bus.cost.ack_s += time.perf_counter() - started
            except Retry as retry:
                span.record_exception(retry)
                await self._deliver_again(message, found, retry, retry.after_s)
            except asyncio.CancelledError:
                await _answer(message.nak())
                raise
            except (MessageError, BlobGone) as error:
                await self._give_up(message, found, DeadReason.INVALID, error)
            except BusError as error:  # the bus's fault, not the message's
                span.record_exception(error)
                await self._deliver_again(message, found, error, None)
            except Rejected as error:
                await self._give_up(message, found, DeadReason.REJECTED, error)
            except _Exhausted as error:
                await self._give_up(message, found, DeadReason.EXHAUSTED, error)
            except Exception as error:
                await self._give_up(message, found, DeadReason.BUG, error)
        meters.process_duration.record(time.perf_counter() - began, labels)

    async def _publish(self, outputs: Sequence[Out], delivery_id: str) -> None:
        for index, out in enumerate(outputs):
            msg_id = out.msg_id or derive(delivery_id, self._actor.kind, out.topic.name, index)
            stored = await self._bus.publish(
                out.topic,
                out.records,
                *out.key,
                msg_id=msg_id,
                extra_headers={headers.GROUP: out.group_id} if out.group_id else None,
                deadline_s=None,
            )
            if stored.duplicate:
                self._actor.counters["duplicates"] += 1

    async def _deliver_again(
        self, message: Msg, found: dict[str, str], error: Exception, after_s: float | None
    ) -> None:
        deliveries = message.metadata.num_delivered
        self._actor.counters["retries"] += 1
        if deliveries >= MAX_DELIVERIES:
            exhausted = _Exhausted(f"given up after {deliveries} deliveries, the last with: {error}")
            await self._give_up(message, found, DeadReason.EXHAUSTED, exhausted)
            return
        if after_s is None:
            after_s = RETRY.delay_s(deliveries, self._actor.context.rng)
        log.warning("to be delivered again", topic=self._work.topic.name, error=str(error), after_s=round(after_s, 2))
        await _answer(message.nak(after_s))

    async def _give_up(self, message: Msg, found: dict[str, str], reason: DeadReason, error: Exception) -> None:
        self._actor.counters["dead"] += 1
        trace.get_current_span().record_exception(error)
        trace.get_current_span().set_status(trace.StatusCode.ERROR, reason.value)
        self._actor.context.telemetry.meters.dead_letters.add(
            1, {semconv.RL_TOPIC: self._work.topic.name, semconv.RL_REASON: reason.value}
        )
        metadata = message.metadata
        text = f"{type(error).__name__}: {error}" if reason is DeadReason.BUG else str(error)
        log.error("dead letter", topic=self._work.topic.name, seq=metadata.sequence.stream, reason=reason, error=text)
        claim = found.get(headers.CLAIM)
        payload = await self._whole_payload(message, found)
        letter = DeadLetter(
            id=derive("dead", self._stream, metadata.sequence.stream, found.get(headers.MSG_ID, "")),
            topic=self._work.topic.name,
            subject=message.subject,
            stream_seq=metadata.sequence.stream,
            actor=self._actor.context.instance,
            reason=reason,
            error=text[:2048],
            traceback="".join(traceback.format_exception(error))[-16_384:] if reason is DeadReason.BUG else "",
            deliveries=metadata.num_delivered,
            group_id=found.get(headers.GROUP),
            headers=found,
            payload=payload,
            died_s=self._actor.clock.now(),
        )
        extra = {headers.GROUP: letter.group_id} if letter.group_id else None
        await self._bus.publish(
            DEAD, [letter], self._work.topic.name, msg_id=letter.id, extra_headers=extra, deadline_s=None
        )
        await self._settle(message, None if headers.CLAIM in found else claim, Msg.Ack.Term)

    async def _whole_payload(self, message: Msg, found: dict[str, str]) -> bytes:
        """The payload itself, so that the letter can be replayed after its claim has expired."""
        claim = found.get(headers.CLAIM)
        if claim is None:
            return message.data
        try:
            payload = await blobs.get(self._bus, claim)
        except BlobGone as error:
            log.warning("dead letter without its payload", error=str(error))
            return b""
        found.pop(headers.CLAIM)
        return payload

    async def _settle(self, message: Msg, claim: str | None, verb: bytes = Msg.Ack.Ack) -> None:
        """Acknowledge. A claimed payload is freed, once the server has confirmed that nobody will be sent its claim."""
        if claim is None:
            await _answer(message.ack() if verb == Msg.Ack.Ack else message.term())
            return
        try:
            await self._bus.nc.request(message.reply, verb, timeout=SETTLE_S)
            await blobs.delete(self._bus, claim)
        except Exception as error:  # the message comes again, or the blobs stream forgets the payload by age
            log.warning("claimed payload not freed", error=str(error))


class _Exhausted(Exception):
    """A message whose deliveries are used up."""


async def _give_back(messages: Sequence[Msg]) -> None:
    for message in messages:
        await _answer(message.nak())


async def _answer(answer: Any) -> None:
    """Send an acknowledgement. One that is lost only means another delivery, which is harmless."""
    try:
        await answer
    except nats.errors.Error as error:
        log.warning("acknowledgement not sent", error=str(error))
