"""Pulling from a consumer by byte budget: what a fetch asks for is bounded in bytes, what arrives is never lost.

nats-py's own ``fetch`` can not bound bytes (a hundred large messages cut the client off as slow), so the request is
made here. At most one request is outstanding; what it has not yet delivered is waited for before another is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg

from messages import Topic
from runtime.backoff import Backoff
from runtime.errors import StreamMissing

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription

    from runtime.bus import Bus

GRACE_S = 2.0
"""A request whose end the server has not announced so long after its expiry was lost with a connection."""


class ConsumerGone(Exception):
    """The consumer (or its stream) is no longer on the server."""


class PullRequests:
    """The pull protocol of one named consumer over one inbox."""

    def __init__(self, bus: Bus, stream: str, consumer: str) -> None:
        self._bus = bus
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._where = f"{consumer} of {stream}"
        self._inbox = bus.nc.new_inbox()
        self._sub: Subscription | None = None
        self._request = 0
        self._owed = 0
        self._ends_at = 0.0

    async def fetch(self, batch: int, max_bytes: int, expires_s: float) -> list[Msg]:
        """What arrives first: at least one message, or none when ``expires_s`` passed.

        Raises:
            ConsumerGone: the server says that the consumer or stream is not there.
        """
        if self._sub is None:
            self._sub = await self._bus.nc.subscribe(
                f"{self._inbox}.*", pending_msgs_limit=65_536, pending_bytes_limit=512 << 20
            )
        if self._owed <= 0 or time.monotonic() > self._ends_at + GRACE_S:
            await self._ask(batch, max_bytes, expires_s)
        messages: list[Msg] = []
        until = self._ends_at + GRACE_S
        while self._owed > 0:
            wait_s = until - time.monotonic() if not messages else 0.0
            message = await self._next(wait_s)
            if message is None:
                if not messages:
                    self._owed = 0
                break
            if self._is_status(message):
                continue
            self._owed -= 1
            messages.append(message)
            if len(messages) >= batch:
                break
        return messages

    async def _ask(self, batch: int, max_bytes: int, expires_s: float) -> None:
        self._request += 1
        self._owed, self._ends_at = batch, time.monotonic() + expires_s
        request = {"batch": batch, "max_bytes": max_bytes, "expires": int(expires_s * 1e9)}
        await self._bus.nc.publish(self._subject, json.dumps(request).encode(), f"{self._inbox}.{self._request}")

    async def _next(self, wait_s: float) -> Msg | None:
        assert self._sub is not None
        queue = self._sub._pending_queue
        if wait_s <= 0 and queue.empty():
            return None
        try:
            return await self._sub.next_msg(timeout=max(wait_s, 0.001))
        except nats.errors.TimeoutError:
            return None

    def _is_status(self, message: Msg) -> bool:
        if message.reply or not message.headers or "Status" not in message.headers:
            return False
        if message.subject != f"{self._inbox}.{self._request}":
            return True  # the end of an earlier request
        status, text = message.headers["Status"], message.headers.get("Description", "").lower()
        self._owed = 0
        if status == "503" or (status == "409" and "deleted" in text) or (status == "404" and "consumer" in text):
            raise ConsumerGone(f"{self._where}: {status} {text or 'nothing answers'}")
        return True

    async def close(self) -> list[Msg]:
        """Stop; returns what had been delivered and not yet fetched."""
        if self._sub is None:
            return []
        queue = self._sub._pending_queue
        left = [queue.get_nowait() for _ in range(queue.qsize())]
        with contextlib.suppress(nats.errors.BadSubscriptionError, nats.errors.ConnectionClosedError):
            await self._sub.unsubscribe()
        self._sub = None
        return [message for message in left if message.reply]


class OrderedReader:
    """Reads a stream in order, each message once, through anything that happens to its consumer.

    It keeps its own place (a stream sequence) and makes a fresh ephemeral consumer from there whenever the old one is
    gone; nothing is acknowledged and nothing is shared.
    """

    def __init__(self, bus: Bus, topic: Topic, *, filter_subject: str, start: str | int) -> None:
        self._bus = bus
        self._topic = topic
        self._stream = topic.stream(bus.run)
        self._filter = filter_subject
        self._start = start
        self._next_seq: int | None = start if isinstance(start, int) else None
        self._pull: PullRequests | None = None
        self._consumer = ""
        self._caught_up = False

    async def at_end(self) -> bool:
        """Whether everything that was in the stream at the last look has been fetched."""
        if self._pull is None:
            await self._open()
        return self._caught_up

    async def fetch(self, batch: int = 256, max_bytes: int = 8 << 20, expires_s: float = 2.0) -> list[Msg]:
        """The next messages in order; none when there are none within ``expires_s``.

        Raises:
            StreamMissing: the stream is not on the server and did not come back.
        """
        try:
            pull = self._pull or await self._open()
            messages = await pull.fetch(batch, max_bytes, expires_s)
        except ConsumerGone:
            await self.close()
            await asyncio.sleep(0.1)
            return []
        fresh = []
        for message in messages:
            metadata = message.metadata
            if self._next_seq is not None and metadata.sequence.stream < self._next_seq:
                continue
            self._next_seq = metadata.sequence.stream + 1
            self._caught_up = metadata.num_pending == 0
            fresh.append(message)
        return fresh

    async def _open(self) -> PullRequests:
        config: dict[str, Any] = {
            "name": f"f{uuid.uuid4().hex[:20]}",
            "filter_subject": self._filter,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "inactive_threshold": int(60e9),
        }
        if self._next_seq is not None:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, self._next_seq)}
        else:
            config["deliver_policy"] = {"all": "all", "new": "new", "last": "last"}[str(self._start)]
        info = await self._create(config)
        self._consumer = info["name"]
        pending = int(info.get("num_pending", 0))
        if self._next_seq is None and self._start == "new":
            self._next_seq = int(info["delivered"]["stream_seq"]) + 1
        self._caught_up = pending == 0
        self._pull = PullRequests(self._bus, self._stream, self._consumer)
        return self._pull

    async def _create(self, config: dict[str, Any]) -> dict[str, Any]:
        subject = f"$JS.API.CONSUMER.CREATE.{self._stream}.{config['name']}.{self._filter}"
        payload = json.dumps({"stream_name": self._stream, "config": config, "action": "create"}).encode()
        backoff = Backoff()
        for attempt in range(1, 40):
            answer: dict[str, Any] = json.loads((await self._bus.request_raw(subject, payload)).data)
            error = answer.get("error")
            if error is None:
                return answer
            if error.get("err_code") == 10148:  # our own create of a moment ago was stored, its answer lost
                config["name"] = f"f{uuid.uuid4().hex[:20]}"
                return await self._create(config)
            if attempt == 39 or error.get("code") in (400, 403):
                raise StreamMissing(f"can not read {self._stream}: {error.get('description')}")
            await asyncio.sleep(backoff.delay_s(attempt, self._bus.rng))
        raise StreamMissing(f"can not read {self._stream}")

    async def close(self) -> None:
        """Give the consumer back."""
        if self._pull is None:
            return
        await self._pull.close()
        self._pull = None
        with contextlib.suppress(nats.errors.Error):  # the server forgets it by itself after inactive_threshold
            await self._bus.nc.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}", b"")


__all__ = ["ConsumerGone", "OrderedReader", "PullRequests"]
