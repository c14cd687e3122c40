"""The bus: typed parcels over JetStream. What it promises: a publish that returns is stored, under its id, once.

Every publish is retried with the same ``Nats-Msg-Id`` until it is acknowledged or its deadline has passed, so a server
that is killed in between costs time, never a message and never a double. Payloads above the claim-check threshold
travel through the blobs stream; readers do not see the difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import nats
import nats.errors
import nats.js.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.client import JetStreamContext

from messages import MessageError, Record, Topic, check_name, decode, encode, headers
from ops import semconv
from ops.telemetry import Telemetry, disabled
from runtime import blobs
from runtime.backoff import Backoff
from runtime.errors import BlobGone, BusError, BusFull, BusUnreachable, Forbidden, StreamMissing
from runtime.follow import follow
from runtime.parcel import Published, Received, StreamState

CLAIM_THRESHOLD_BYTES = 1 << 20
PUBLISH_TIMEOUT_S = 5.0
API_TIMEOUT_S = 5.0

MAX_DENIED = 1024

log = structlog.get_logger()

_STREAM_FULL = 10077
_DENIED = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)
_RETRYABLE = (
    nats.errors.TimeoutError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.OutboundBufferLimitError,
    nats.js.errors.NoStreamResponseError,
    nats.js.errors.ServiceUnavailableError,
    nats.js.errors.ServerError,
)


@dataclass
class BusCost:
    """Seconds that this process spent on the bus: waiting for publishes, encoding, decoding, acknowledging."""

    publish_s: float = 0.0
    decode_s: float = 0.0
    ack_s: float = 0.0
    published: int = 0
    received: int = 0

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.publish_s + self.decode_s + self.ack_s


@dataclass
class Bus:
    """One connection to one run on one NATS server."""

    nc: Client
    js: JetStreamContext
    run: str
    name: str
    telemetry: Telemetry = field(default_factory=disabled)
    rng: random.Random = field(default_factory=random.Random)
    cost: BusCost = field(default_factory=BusCost)
    _denied: set[str] = field(default_factory=set)

    @classmethod
    async def connect(
        cls,
        url: str,
        run: str,
        *,
        user: str | None = None,
        password: str | None = None,
        name: str = "busrl",
        telemetry: Telemetry | None = None,
        timeout_s: float = 5.0,
    ) -> Bus:
        """Connect, or say why not.

        Raises:
            BusUnreachable: nothing answers at ``url`` within ``timeout_s``, or it refuses the credentials.
        """
        check_name(run, "run")
        refused: list[Exception] = []
        bus: Bus | None = None

        async def on_error(error: Exception) -> None:
            if bus is None:
                refused.append(error)
            else:
                bus._on_error(error)

        options: dict[str, Any] = {"user": user, "password": password} if user else {}
        try:
            nc = await asyncio.wait_for(
                nats.connect(
                    url,
                    name=name,
                    error_cb=on_error,
                    connect_timeout=2,
                    allow_reconnect=True,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.2,
                    ping_interval=10,
                    max_outstanding_pings=2,
                    inbox_prefix=f"_INBOX.{user or 'any'}",
                    pending_size=64 << 20,
                    **options,
                ),
                timeout_s,
            )
        except (TimeoutError, OSError, nats.errors.Error, ValueError) as error:
            reason = str(refused[-1] if refused else error) or "no answer"
            raise BusUnreachable(
                f"no bus at {url}: {reason}; is the run up, and are the credentials its own?"
            ) from error
        bus = cls(nc, nc.jetstream(timeout=API_TIMEOUT_S), run, name, telemetry or disabled())
        return bus

    def _on_error(self, error: Exception) -> None:
        """What the connection says beside any answer: above all, what this user may not do."""
        denied = _DENIED.search(str(error))
        if denied is None:
            log.warning("bus", name=self.name, error=str(error) or type(error).__name__)
            return
        log.error("bus: not permitted", name=self.name, operation=denied[1].lower(), subject=denied[2])
        if denied[1].lower() == "publish" and len(self._denied) < MAX_DENIED:
            self._denied.add(denied[2])

    async def close(self) -> None:
        """Send what is buffered and disconnect."""
        with contextlib.suppress(TimeoutError, nats.errors.Error):  # nothing acknowledged depends on this flush
            await asyncio.wait_for(self.nc.flush(timeout=2), 3)
        await self.nc.close()

    # --- publishing -------------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: Topic,
        records: Sequence[Record],
        *key: str,
        msg_id: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        deadline_s: float | None = 60.0,
    ) -> Published:
        """Store a parcel on a topic.

        Args:
            topic: where to.
            records: one or more records of the topic's schema.
            key: the subject's tokens after the topic's name.
            msg_id: what makes a repeat harmless; the same id within the topic's window is stored once.
            extra_headers: such as the group's id.
            deadline_s: give up after so many seconds; None tries for ever.

        Raises:
            BusFull: the stream stayed at its bound until the deadline.
            StreamMissing: nothing answered for the stream until the deadline.
            Forbidden: this user may not publish there.
            nats.js.errors.APIError: the server refuses this message for good.
        """
        started = time.perf_counter()
        payload = encode(records)
        message_headers = {headers.SCHEMA: records[0].schema_header()}
        if msg_id is not None:
            message_headers[headers.MSG_ID] = msg_id
        if extra_headers:
            message_headers.update(extra_headers)
        subject = topic.subject(self.run, *key)
        with self.telemetry.producer_span(topic.name, msg_id, len(payload), len(records), subject=subject):
            self.telemetry.inject(message_headers)
            if len(payload) > CLAIM_THRESHOLD_BYTES:
                message_headers[headers.CLAIM] = await blobs.put(self, payload, msg_id, deadline_s)
                payload = b""
            ack = await self.publish_bytes(subject, payload, message_headers, topic.stream(self.run), deadline_s)
        took_s = time.perf_counter() - started
        self.cost.publish_s += took_s
        self.cost.published += 1
        labels = {semconv.RL_TOPIC: topic.name}
        meters = self.telemetry.meters
        meters.operation_duration.record(took_s, {**labels, semconv.MESSAGING_OPERATION_NAME: "publish"})
        meters.sent_messages.add(1, {**labels, semconv.MESSAGING_OPERATION_NAME: "publish"})
        meters.message_bytes.record(len(payload), labels)
        return ack

    async def publish_bytes(
        self,
        subject: str,
        payload: bytes,
        message_headers: dict[str, str],
        stream: str,
        deadline_s: float | None = 60.0,
    ) -> Published:
        """Store bytes; :meth:`publish` and the blobs are built on it. Same errors."""
        backoff, attempt = Backoff(), 0
        give_up = None if deadline_s is None else time.monotonic() + deadline_s
        while True:
            attempt += 1
            try:
                ack = await self.js.publish(
                    subject, payload, timeout=PUBLISH_TIMEOUT_S, stream=stream, headers=dict(message_headers)
                )
                return Published(ack.seq, bool(ack.duplicate))
            except _RETRYABLE as error:
                if "per subject" in str(getattr(error, "description", "")):
                    raise
                self._refuse_denied(subject, error)
                if give_up is not None and time.monotonic() >= give_up:
                    raise self._publish_error(subject, stream, error) from error
                await asyncio.sleep(backoff.delay_s(attempt, self.rng))

    def _refuse_denied(self, subject: str, error: Exception) -> None:
        if subject.lower() in self._denied:  # the client library gives the server's words in lower case
            raise Forbidden(f"the bus user of {self.name} may not publish to {subject}") from error

    @staticmethod
    def _publish_error(subject: str, stream: str, error: Exception) -> BusError:
        if getattr(error, "err_code", None) == _STREAM_FULL:
            return BusFull(
                f"stream {stream} is at its bound ({getattr(error, 'description', '')}); {subject} not stored"
            )
        if isinstance(error, nats.js.errors.NoStreamResponseError):
            return StreamMissing(f"no stream answers for {subject} (expected {stream})")
        return BusError(f"{subject} was not acknowledged: {type(error).__name__}: {error}")

    # --- reading ----------------------------------------------------------------------------------------------------

    async def unpack(self, data: bytes, message_headers: Mapping[str, str], topic: Topic | None = None) -> list[Record]:
        """Decode a parcel (of ``topic``, when given), fetching its payload when it was claim-checked.

        Raises:
            MessageError: it does not decode or validate, or is no record of the topic.
            BlobGone: its payload is not there or damaged.
        """
        claim = message_headers.get(headers.CLAIM)
        if claim is not None:
            data = await blobs.get(self, claim)
        started = time.perf_counter()
        records = decode(message_headers.get(headers.SCHEMA), data)
        self.cost.decode_s += time.perf_counter() - started
        self.cost.received += 1
        if topic is not None and topic.record is not None and not isinstance(records[0], topic.record):
            found, wanted = records[0].schema_header(), topic.record.schema_header()
            raise MessageError(f"{found} on topic {topic.name}, not {wanted}")
        return records

    async def get(self, topic: Topic, seq: int) -> Received | None:
        """The parcel at a stream sequence, or None when it is gone.

        Raises:
            MessageError, BlobGone: it can not be read.
        """
        found = await self._direct(topic, {"seq": seq})
        return None if found is None else await self._received(topic, found)

    async def last(self, topic: Topic, *key: str) -> Received | None:
        """The newest parcel of a subject, or without ``key`` the newest readable one of the topic; None: there is none.

        Raises:
            MessageError, BlobGone: the subject's newest can not be read.
        """
        subject = topic.subject(self.run, *key) if key else topic.all_subjects(self.run)
        found = await self._direct(topic, {"last_by_subj": subject})
        while found is not None:
            try:
                return await self._received(topic, found)
            except (MessageError, BlobGone) as error:
                if key:
                    raise
                seq = _place(found)[0]
                log.warning("unreadable message", topic=topic.name, seq=seq, error=str(error))
                found = await self._before(topic, seq)
        return None

    async def _before(self, topic: Topic, seq: int) -> Msg | None:
        first_seq = (await self.stream_state(topic)).first_seq
        for earlier in range(seq - 1, first_seq - 1, -1):
            found = await self._direct(topic, {"seq": earlier})
            if found is not None:
                return found
        return None

    async def _direct(self, topic: Topic, request: Mapping[str, Any]) -> Msg | None:
        message = await self.request_raw(f"$JS.API.DIRECT.GET.{topic.stream(self.run)}", json.dumps(request).encode())
        found = message.headers or {}
        if found.get("Status") == "404":
            return None
        if "Status" in found and found["Status"] != "200":
            raise BusError(f"stream {topic.stream(self.run)}: {found.get('Status')} {found.get('Description')}")
        return message

    async def _received(self, topic: Topic, message: Msg) -> Received:
        found = message.headers or {}
        return Received(await self.unpack(message.data, found, topic), *_place(message), found)

    async def request_raw(self, subject: str, payload: bytes, timeout_s: float = 30.0) -> Msg:
        """Ask and wait, through reconnects and leader changes, up to ``timeout_s``.

        Raises:
            Forbidden: this user may not ask that.
            BusError: no answer in time.
        """
        backoff, attempt, give_up = Backoff(), 0, time.monotonic() + timeout_s
        while True:
            attempt += 1
            try:
                return await self.nc.request(subject, payload, timeout=API_TIMEOUT_S)
            except (
                nats.errors.TimeoutError,
                nats.errors.NoRespondersError,
                nats.errors.OutboundBufferLimitError,
            ) as error:
                self._refuse_denied(subject, error)
                if time.monotonic() >= give_up:
                    raise BusError(f"no answer on {subject} for {timeout_s:.0f} s: {type(error).__name__}") from error
                await asyncio.sleep(backoff.delay_s(attempt, self.rng))

    async def stream_state(self, topic: Topic) -> StreamState:
        """How full a topic's stream is.

        Raises:
            StreamMissing: it is not on the server.
        """
        answer = json.loads((await self.request_raw(f"$JS.API.STREAM.INFO.{topic.stream(self.run)}", b"")).data)
        if "error" in answer:
            raise StreamMissing(f"stream {topic.stream(self.run)}: {answer['error'].get('description')}")
        state = answer["state"]
        return StreamState(state["messages"], state["bytes"], state["first_seq"], state["last_seq"])

    def follow(self, topic: Topic, start: str | int = "all", *key: str) -> AsyncGenerator[Received, None]:
        """Read a topic on and on, without a gap, through reconnects and server restarts.

        Args:
            topic: what to read.
            start: "all", "new", "last" (the newest there is, then on), or a stream sequence.
            key: restrict to one subject (tokens may be "*" or end in ">").
        """
        return follow(self, topic, start, key)

    async def read(self, topic: Topic, start: str | int = "all", *key: str) -> list[Received]:
        """Everything on a topic from ``start`` up to what is there now; arguments as in :meth:`follow`."""
        return [received async for received in follow(self, topic, start, key, until_caught_up=True)]


def _place(message: Msg) -> tuple[int, str]:
    """Sequence and subject of a message that was asked for directly."""
    found = message.headers or {}
    return int(found["Nats-Sequence"]), found["Nats-Subject"]


__all__ = ["Bus", "BusCost", "Published", "Received", "StreamState"]
