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
from collections import deque
from typing import TYPE_CHECKING, Any

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from messages import Topic
from runtime.backoff import Backoff
from runtime.errors import StreamMissing

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription

    from runtime.bus import Bus

log = structlog.get_logger()

GRACE_S = 2.0
"""A request whose end the server has not announced so long after its expiry was lost with a connection."""
REFUSED_S = 0.2
"""Pause after a request that the server refused (a leader change, a shutdown, too many requests)."""
CLOSE_S = 2.0


class ConsumerGone(Exception):
    """The consumer (or its stream) is no longer on the server."""


class PullRequests:
    """The pull protocol of one named consumer over one inbox. A cancelled :meth:`fetch` loses nothing."""

    def __init__(self, bus: Bus, stream: str, consumer: str) -> None:
        self._bus = bus
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._where = f"{consumer} of {stream}"
        self._inbox = ""
        self._sub: Subscription | None = None
        self._arrived: deque[Msg] = deque()
        self._news = asyncio.Event()
        self._request = 0
        self._asked = 0
        self._owed = 0
        self._ends_at = 0.0
        self._alone = False
        self._gone: ConsumerGone | None = None
        self._refused = False
        self.idle = False
        """The last fetch returned nothing because the server had nothing, for as long as it was asked to wait."""

    async def fetch(self, batch: int, max_bytes: int, expires_s: float) -> list[Msg]:
        """What arrives first: at least one message, or none when ``expires_s`` passed or the server refused.

        A message that alone is larger than ``max_bytes`` is asked for by itself.

        Raises:
            ConsumerGone: the server says that the consumer or stream is not there.
        """
        await self._listen()
        self.idle = self._refused = False
        while self._arrived and not self._arrived[0].reply:
            self._status(self._arrived.popleft())
        lost = time.monotonic() > self._ends_at + GRACE_S
        if not self._arrived and self._gone is None and (self._owed <= 0 or lost):
            await self._ask(batch, max_bytes, expires_s)
        messages: list[Msg] = []
        while len(messages) < batch:
            if self._arrived:
                message = self._arrived.popleft()
                if message.reply:
                    self._owed -= 1
                    messages.append(message)
                else:
                    self._status(message)
            elif messages or self._owed <= 0:
                break
            elif not await self._arrival(self._ends_at + GRACE_S):
                self._owed = 0
        if not messages and self._gone is not None:
            gone, self._gone = self._gone, None
            raise gone
        if not messages and self._refused:
            await asyncio.sleep(REFUSED_S)
        return messages

    async def _listen(self) -> None:
        if self._sub is None:
            self._inbox = self._bus.nc.new_inbox()
            self._sub = await self._bus.nc.subscribe(
                f"{self._inbox}.*", cb=self._arrive, pending_msgs_limit=65_536, pending_bytes_limit=512 << 20
            )

    async def _arrive(self, message: Msg) -> None:
        self._arrived.append(message)
        self._news.set()

    async def _arrival(self, until: float) -> bool:
        self._news.clear()
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def _ask(self, batch: int, max_bytes: int, expires_s: float) -> None:
        request = {"batch": batch, "max_bytes": max_bytes, "expires": int(expires_s * 1e9)}
        if self._alone:
            request = {"batch": 1, "expires": int(expires_s * 1e9)}
        self._request += 1
        self._alone = False
        self._asked = self._owed = request["batch"]
        self._ends_at = time.monotonic() + expires_s
        try:
            await self._bus.nc.publish(self._subject, json.dumps(request).encode(), f"{self._inbox}.{self._request}")
        except nats.errors.OutboundBufferLimitError:  # no server for so long that all the room for waiting is taken
            self._owed, self._refused = 0, True

    def _status(self, message: Msg) -> None:
        """The server says that a request has ended, and why."""
        if message.subject != f"{self._inbox}.{self._request}":
            return  # an earlier request's end
        found = message.headers or {}
        status, text = found.get("Status", ""), found.get("Description", "").lower()
        untouched = self._owed == self._asked
        self._owed = 0
        if status == "503" or "consumer deleted" in text or (status == "404" and "not found" in text):
            self._gone = ConsumerGone(f"{self._where}: {status} {text or 'nothing answers'}")
        elif "exceeds maxbytes" in text:
            self._alone = untouched
        elif status in ("404", "408"):
            self.idle = untouched
        elif "batch completed" not in text:
            self._refused = True
            log.warning("fetch refused", consumer=self._where, status=status, reason=text)

    async def close(self) -> list[Msg]:
        """Stop; returns what had been delivered and not yet fetched, also what was on its way."""
        sub, self._sub = self._sub, None
        if sub is None:
            return []
        nc = self._bus.nc
        with contextlib.suppress(TimeoutError, nats.errors.Error):  # what does not arrive is delivered again
            if nc.is_connected:
                async with asyncio.timeout(CLOSE_S):
                    await nc._send_unsubscribe(sub._id)
                    await _round_trip(nc)
                    await _round_trip(nc)  # the first PING overtakes what waits to be sent; this one does not
                    await sub._pending_queue.join()
            await sub.unsubscribe()
        left = [message for message in self._arrived if message.reply]
        self._arrived.clear()
        self._owed = 0
        return left


async def _round_trip(nc: Client) -> None:
    """Until the server has answered.

    The client's own flush, when it is cancelled, leaves a cancelled future behind on which the next PONG breaks the
    connection's read loop: nothing is received any more, and nobody is told.
    """
    pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    await nc._send_ping(pong)
    await asyncio.wait({pong})


class OrderedReader:
    """Reads a stream in order, each message once, through anything that happens to its consumer or connection.

    It keeps its own place (a stream sequence) and makes a fresh ephemeral consumer from there whenever the old one is
    gone, or has delivered something that never arrived; nothing is acknowledged and nothing is shared.
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
        self._delivered = 0
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
        if not messages and pull.idle:
            self._caught_up = True
        fresh = []
        for message in messages:
            metadata = message.metadata
            if metadata.sequence.consumer != self._delivered + 1:
                log.warning("a message was lost on its way, reading again", stream=self._stream, at=self._next_seq)
                await self.close()
                break
            self._delivered += 1
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
        self._consumer, self._delivered = info["name"], 0
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
