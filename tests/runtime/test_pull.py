"""Pulling by byte budget and reading in order: nothing is lost, whatever happens to the request or the connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

import nats.errors
import pytest
import structlog.testing

from messages import Snapshot, Step
from messages.topics import STEPS, TURNS
from runtime.bus import Bus
from runtime.declare import consumer_config
from runtime.pull import REFUSED_S, ConsumerGone, OrderedReader, PullRequests
from tests.conftest import RUN, LiveBus
from tests.runtime.tiny import publish_turns, until


def step(number: int) -> Step:
    return Step(epoch=1, version=number, batch_id=f"b{number}", batch_number=number, stepped=True, finished_s=0.0)


async def publish_steps(bus: Bus, *numbers: int) -> None:
    for number in numbers:
        await bus.publish(STEPS, [step(number)], "1", msg_id=f"step-{number}")


@pytest.fixture
async def admin(live: LiveBus) -> Bus:
    return await live.connect()


@pytest.fixture
async def pull(live: LiveBus) -> AsyncIterator[PullRequests]:
    requests = PullRequests(await live.connect("generator"), TURNS.stream(RUN), TURNS.durable("generator"))
    yield requests
    await requests.close()


async def put_bytes(bus: Bus, *sizes: int) -> None:
    for size in sizes:
        await bus.publish_bytes(TURNS.subject(RUN, "sums"), bytes(size), {}, TURNS.stream(RUN))


async def take(pull: PullRequests, n: int, max_bytes: int = 1 << 20) -> list[int]:
    """Sizes of the next ``n`` messages, acknowledged."""
    sizes: list[int] = []
    async with asyncio.timeout(20):
        while len(sizes) < n:
            for message in await pull.fetch(n - len(sizes), max_bytes, 1.0):
                sizes.append(len(message.data))
                await message.ack()
    return sizes


async def test_a_fetch_stays_within_its_budget_of_bytes(admin: Bus, pull: PullRequests) -> None:
    await put_bytes(admin, *[3000] * 9)
    first = await pull.fetch(100, 10_000, 2.0)
    await asyncio.sleep(0.2)  # what had been sent beyond the budget would be here by now
    assert 1 <= len(first) + len(await pull.close()) <= 3


async def test_a_message_larger_than_the_budget_is_still_delivered(admin: Bus, pull: PullRequests) -> None:
    await put_bytes(admin, 10, 50_000, 20, 60_000, 70_000)
    assert await take(pull, 5, max_bytes=1000) == [10, 50_000, 20, 60_000, 70_000]


async def test_an_empty_fetch_ends_when_it_expires(pull: PullRequests) -> None:
    async with asyncio.timeout(1.5):
        assert await pull.fetch(10, 1 << 20, 0.3) == []
    assert pull.idle


async def test_no_more_is_ever_outstanding_than_was_asked_for(admin: Bus, pull: PullRequests) -> None:
    await put_bytes(admin, *[10] * 50)
    held = await pull.fetch(5, 1 << 20, 1.0)
    while len(held) < 5:
        held += await pull.fetch(5 - len(held), 1 << 20, 1.0)
    info = await admin.js.consumer_info(TURNS.stream(RUN), TURNS.durable("generator"))
    assert info.num_ack_pending == 5


async def test_a_cancelled_fetch_loses_nothing(admin: Bus, pull: PullRequests) -> None:
    seen: list[int] = []

    async def take_all() -> None:
        while True:
            seen.extend(message.metadata.sequence.stream for message in await pull.fetch(16, 1 << 20, 1.0))

    for round_ in range(20):
        taking = asyncio.create_task(take_all())
        await put_bytes(admin, *[round_] * 5)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
    seen.extend(message.metadata.sequence.stream for message in await pull.close())
    info = await admin.js.consumer_info(TURNS.stream(RUN), TURNS.durable("generator"))
    assert sorted(seen) == list(range(1, info.delivered.stream_seq + 1))


async def test_closing_returns_what_was_delivered_and_not_fetched(admin: Bus, pull: PullRequests) -> None:
    await put_bytes(admin, *[10] * 30)
    first = await pull.fetch(30, 1 << 20, 2.0)
    left = await pull.close()
    info = await admin.js.consumer_info(TURNS.stream(RUN), TURNS.durable("generator"))
    assert len(first) + len(left) == info.delivered.consumer_seq
    assert await take(pull, 30 - info.delivered.consumer_seq) == [10] * (30 - info.delivered.consumer_seq)


async def test_a_deleted_consumer_is_noticed_at_once(admin: Bus, pull: PullRequests) -> None:
    fetching = asyncio.create_task(pull.fetch(1, 1 << 20, 5.0))
    await until(lambda: pull._request == 1)
    await admin.nc.flush()
    await admin.js.delete_consumer(TURNS.stream(RUN), TURNS.durable("generator"))
    with pytest.raises(ConsumerGone):
        await asyncio.wait_for(fetching, 2)
    with pytest.raises(ConsumerGone):
        await asyncio.wait_for(pull.fetch(1, 1 << 20, 5.0), 2)


async def test_a_refused_request_is_said_and_asked_again_without_haste(live: LiveBus, admin: Bus) -> None:
    name, stream = TURNS.durable("generator"), TURNS.stream(RUN)
    await admin.js.delete_consumer(stream, name)
    narrow = consumer_config(TURNS, "generator", RUN) | {"max_waiting": 1}
    request = {"stream_name": stream, "config": narrow, "action": "create"}
    await admin.request_raw(
        f"$JS.API.CONSUMER.CREATE.{stream}.{name}.{narrow['filter_subject']}", json.dumps(request).encode()
    )
    bus = await live.connect("generator")
    first, second = PullRequests(bus, stream, name), PullRequests(bus, stream, name)
    holding = asyncio.create_task(first.fetch(1, 1 << 20, 30.0))
    await until(lambda: first._request == 1)
    await bus.nc.flush()
    started = time.monotonic()
    with structlog.testing.capture_logs() as logs:
        assert await second.fetch(1, 1 << 20, 2.0) == []
    assert REFUSED_S <= time.monotonic() - started < 1.9
    assert [entry["reason"] for entry in logs] == ["exceeded maxwaiting"]
    await put_bytes(admin, 1)
    assert len(await holding) == 1
    await put_bytes(admin, 2)
    assert await take(second, 1) == [2]
    await first.close()
    await second.close()


async def test_a_request_lost_with_the_server_is_made_again(live: LiveBus, admin: Bus, pull: PullRequests) -> None:
    taking = asyncio.create_task(take(pull, 1))
    await until(lambda: pull._request == 1)
    live.server._process.kill()
    await live.server.wait()
    await live.server.start()
    await put_bytes(admin, 7)
    assert await asyncio.wait_for(taking, 10) == [7]


async def test_an_outage_that_fills_the_room_for_waiting_messages_ends_no_fetching(
    live: LiveBus, admin: Bus, pull: PullRequests
) -> None:
    await pull.fetch(1, 1 << 20, 0.01)
    nc = pull._bus.nc
    await live.server.stop()
    await until(lambda: nc.is_reconnecting)
    with pytest.raises(nats.errors.OutboundBufferLimitError):
        await _fill(nc)
    async with asyncio.timeout(5):
        assert await pull.fetch(1, 1 << 20, 2.0) == []
    await live.server.start()
    await put_bytes(admin, 7)
    assert await take(pull, 1) == [7]


async def _fill(nc: nats.NATS) -> None:
    """Publish to nobody until there is no room for as much as a request."""
    for size in (4 << 20, 1 << 10, 1):
        with contextlib.suppress(nats.errors.OutboundBufferLimitError):
            while True:
                await nc.publish("nobody", bytes(size))
    await nc.publish("nobody", b"")


# --- reading in order -----------------------------------------------------------------------------------------------


class Wire:
    """A connection to the server that can swallow what the server sends, and be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self.swallowing = False
        self.swallowed = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, up_writer]
        await asyncio.gather(self._pump(reader, up_writer, False), self._pump(up_reader, writer, True))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, down: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if down and self.swallowing:
                    self.swallowed += len(data)
                    continue
                sink.write(data)
                await sink.drain()
        sink.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


@contextlib.asynccontextmanager
async def wired(live: LiveBus) -> AsyncIterator[tuple[Bus, Wire]]:
    wire = Wire(live.server.port)
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    login = live.logins["user"]
    bus = await Bus.connect(f"nats://127.0.0.1:{port}", RUN, user=login.user, password=login.password)
    try:
        yield bus, wire
    finally:
        await bus.close()
        server.close()


async def test_what_is_lost_with_a_connection_is_read_again(live: LiveBus, admin: Bus) -> None:
    seen: list[int] = []

    async def read(bus: Bus) -> None:
        async for received in bus.follow(STEPS):
            seen.append(received.record.version)
            if seen[-1] == 19:
                return

    async with wired(live) as (bus, wire):
        reading = asyncio.create_task(read(bus))
        await publish_steps(admin, *range(5))
        await until(lambda: len(seen) == 5)
        wire.swallowing = True
        await publish_steps(admin, *range(5, 10))
        await until(lambda: wire.swallowed > 500)
        wire.cut()
        wire.swallowing = False
        await publish_steps(admin, *range(10, 20))
        await asyncio.wait_for(reading, 20)
    assert seen == list(range(20))


@pytest.mark.parametrize("start", ["all", "new", "last", 1])
async def test_a_reader_whose_consumer_is_deleted_before_its_first_message_misses_nothing(
    live: LiveBus, admin: Bus, start: str | int
) -> None:
    if start in ("new", "last"):
        await publish_steps(admin, 0, 1, 2)
    reader = OrderedReader(await live.connect("user"), STEPS, filter_subject=STEPS.all_subjects(RUN), start=start)
    await reader.at_end()
    await admin.js.delete_consumer(STEPS.stream(RUN), reader._consumer)
    await publish_steps(admin, 3, 4)
    seen: list[int] = []
    async with asyncio.timeout(20):
        while not seen or seen[-1] != 4:
            for message in await reader.fetch():
                seen += [record.version for record in await admin.unpack(message.data, message.headers)]
    await reader.close()
    assert seen in ([3, 4], [4]) if start == "last" else seen == [3, 4]


async def test_reading_to_the_end_ends_when_the_rest_is_deleted_meanwhile(live: LiveBus, admin: Bus) -> None:
    await publish_steps(admin, *range(600))
    reading = (await live.connect("user")).follow(STEPS)
    assert (await anext(reading)).record.version == 0
    await reading.aclose()
    reader = OrderedReader(await live.connect("user"), STEPS, filter_subject=STEPS.all_subjects(RUN), start="all")
    assert not await reader.at_end()
    await admin.js.purge_stream(STEPS.stream(RUN))
    async with asyncio.timeout(10):
        while not await reader.at_end():
            await reader.fetch(expires_s=0.3)
    await reader.close()


async def test_following_new_ones_begins_after_what_is_there(live: LiveBus, admin: Bus) -> None:
    await publish_steps(admin, 0, 1)
    following = (await live.connect("user")).follow(STEPS, "new")
    first = asyncio.create_task(anext(following))

    async def listening() -> bool:
        return (await admin.js.stream_info(STEPS.stream(RUN))).state.consumer_count == 1

    await until(listening)
    await publish_steps(admin, 2)
    assert (await asyncio.wait_for(first, 5)).record.version == 2
    await following.aclose()


async def test_an_unreadable_parcel_is_passed_over_by_a_follower(live: LiveBus, admin: Bus) -> None:
    await admin.publish_bytes(STEPS.subject(RUN, "1"), b"\xc1", {"Busrl-Schema": "step/1"}, STEPS.stream(RUN))
    await admin.publish_bytes(STEPS.subject(RUN, "1"), b"", {"Busrl-Claim": "*;1;1;1"}, STEPS.stream(RUN))
    await admin.publish(STEPS, [Snapshot(kind="x", saved_s=0, state="")], "1")
    await publish_steps(admin, 1)
    assert [found.record for found in await admin.read(STEPS)] == [step(1)]


async def test_a_follower_gives_its_consumer_back(live: LiveBus, admin: Bus) -> None:
    await publish_steps(admin, 0)
    await publish_turns(admin, 1)
    following = (await live.connect("user")).follow(STEPS)
    await anext(following)
    await following.aclose()

    async def nobody() -> bool:
        return (await admin.js.stream_info(STEPS.stream(RUN))).state.consumer_count == 0

    await until(nobody)
