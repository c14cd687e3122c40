"""The inbox against a real server: publish, then acknowledge; or retry, or dead letter; and nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path

import msgpack
import nats.js.errors
import pytest
import structlog.testing

from messages import Control, DeadReason, derive, encode, headers
from messages.topics import BLOBS, CONTROL, DEAD, ROLLOUTS, TURNS
from ops import telemetry as ops_telemetry
from runtime import blobs
from runtime.actor import Delivery
from runtime.bus import Bus
from runtime.declare import declare_consumer, stream_config
from runtime.errors import BlobGone, BusError, BusFull, Rejected, Retry
from runtime.inbox import MAX_DELIVERIES
from runtime.pull import PullRequests
from tests.conftest import LiveBus
from tests.runtime.tiny import (
    QUICK_TURNS,
    QuickTiny,
    Tiny,
    context,
    emptied,
    letters,
    living,
    publish_turns,
    rollout,
    stored,
    turn,
    until,
    waiting,
)


@pytest.fixture
async def admin(live: LiveBus) -> Bus:
    return await live.connect()


@pytest.fixture
async def quick(admin: Bus) -> None:
    """The turns' consumer takes a silent one for dead after a second."""
    await declare_consumer(admin, QUICK_TURNS, "generator", afresh=True)


async def test_an_input_is_acknowledged_after_its_outputs_are_stored_under_derived_ids(
    live: LiveBus, admin: Bus, tmp_path: Path
) -> None:
    await publish_turns(admin, 1, 2, 3)
    async with living(Tiny(context(await live.connect("generator"), tmp_path))):
        await emptied(admin)
    found = await admin.get(ROLLOUTS, 1)
    assert found.headers[headers.MSG_ID] == derive(f"turn-{found.record.id[1:]}", "generator", "rollouts", 0)
    assert found.headers[headers.GROUP] == found.record.group_id
    assert await stored(admin, ROLLOUTS) == 3


@pytest.mark.usefixtures("quick")
async def test_a_handler_killed_between_publish_and_ack_leaves_no_double(
    live: LiveBus, admin: Bus, tmp_path: Path
) -> None:
    login = live.logins["generator"]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.runtime.dying_generator", live.server.url, login.user, login.password, tmp_path,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        await publish_turns(admin, 1)
        async with asyncio.timeout(20):
            while await child.stdout.readline() != b"published\n":
                assert child.returncode is None
    finally:
        child.kill()
        await child.wait()
    assert await stored(admin, ROLLOUTS) == 1
    actor = QuickTiny(context(await live.connect("generator"), tmp_path))
    async with living(actor):
        await emptied(admin)
    assert actor.deliveries == [2]
    assert (actor.counters["redelivered"], actor.counters["duplicates"]) == (1, 1)
    assert await stored(admin, ROLLOUTS) == 1


@pytest.mark.parametrize(
    ("payload", "schema", "says"),
    [
        (b"\xc1not msgpack", "turn/1", "is not msgpack"),
        (encode([turn(1)]), "turn/9", "not readable here"),
        (encode([turn(1)]), None, "schema header None"),
        (encode([rollout("r")]), "rollout/1", "rollout/1 on topic turns, not turn/1"),
        (msgpack.packb([{"id": "x"}]), "turn/1", "Field required"),
        (b"", "turn/1", "is not msgpack"),
    ],
)
async def test_poison_becomes_a_dead_letter_and_the_actor_goes_on(
    live: LiveBus, admin: Bus, tmp_path: Path, payload: bytes, schema: str | None, says: str
) -> None:
    found = {headers.GROUP: "g0"} | ({headers.SCHEMA: schema} if schema else {})
    await admin.publish_bytes(TURNS.subject("test", "sums"), payload, found, TURNS.stream("test"))
    await publish_turns(admin, 2)
    actor = Tiny(context(await live.connect("generator"), tmp_path))
    async with living(actor):
        (letter,) = await letters(admin)
        await emptied(admin)
    assert letter.reason is DeadReason.INVALID
    assert says in letter.error
    assert (letter.topic, letter.stream_seq, letter.group_id, letter.payload) == ("turns", 1, "g0", payload)
    assert found.items() <= letter.headers.items()
    assert actor.done == ["t2"]
    assert actor.counters["dead"] == 1


@pytest.mark.parametrize(
    "claim", ["x", "a.>;1;x;1", "*;5;xxh3-128:" + "0" * 32 + ";1", "a;5;xxh3-128:" + "0" * 32 + ";999999999", "²;²;²;²"]
)
async def test_a_forged_claim_is_a_dead_letter(live: LiveBus, admin: Bus, tmp_path: Path, claim: str) -> None:
    found = {headers.SCHEMA: "turn/1", headers.CLAIM: claim}
    await admin.publish_bytes(TURNS.subject("test", "sums"), b"", found, TURNS.stream("test"))
    kept = await blobs.put(admin, b"x" * 10)
    async with living(Tiny(context(await live.connect("generator"), tmp_path))):
        (letter,) = await letters(admin)
        await emptied(admin)
    assert letter.reason is DeadReason.INVALID
    assert await blobs.get(admin, kept) == b"x" * 10


async def test_what_can_never_be_handled_is_rejected_with_the_reason(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    async def refuse(_: Delivery) -> None:
        raise Rejected("prompt of 9000 tokens, the context has 4096")

    await publish_turns(admin, 1)
    async with living(Tiny(context(await live.connect("generator"), tmp_path), refuse)):
        (letter,) = await letters(admin)
        await emptied(admin)
    assert (letter.reason, letter.error) == (DeadReason.REJECTED, "prompt of 9000 tokens, the context has 4096")
    assert letter.traceback == ""
    assert letter.group_id == "g1"
    assert await stored(admin, ROLLOUTS) == 0


async def test_a_bug_is_a_dead_letter_with_its_traceback(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    async def fail(delivery: Delivery) -> None:
        if delivery.records[0].id == "t1":
            raise ZeroDivisionError("of our own")

    await publish_turns(admin, 1, 2)
    actor = Tiny(context(await live.connect("generator"), tmp_path), fail)
    async with living(actor):
        (letter,) = await letters(admin)
        await emptied(admin)
    assert (letter.reason, letter.error) == (DeadReason.BUG, "ZeroDivisionError: of our own")
    assert "in fail" in letter.traceback
    assert actor.done == ["t2"]


async def test_a_retry_is_delivered_again_after_its_back_off(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    at: list[float] = []

    async def not_yet(delivery: Delivery) -> None:
        at.append(time.monotonic())
        if delivery.deliveries < 3:
            raise Retry("not yet", after_s=0.2)

    await publish_turns(admin, 1)
    actor = Tiny(context(await live.connect("generator"), tmp_path), not_yet)
    async with living(actor):
        await emptied(admin)
    assert actor.deliveries == [1, 2, 3]
    assert min(at[1] - at[0], at[2] - at[1]) >= 0.2
    assert (actor.counters["retries"], actor.counters["redelivered"]) == (2, 2)
    assert await stored(admin, ROLLOUTS) == 1


async def test_trouble_of_the_bus_is_retried_and_never_the_messages_fault(
    live: LiveBus, admin: Bus, tmp_path: Path
) -> None:
    async def trouble(delivery: Delivery) -> None:
        if delivery.deliveries == 1:
            raise BusError("no answer on x for 30 s")

    await publish_turns(admin, 1)
    actor = Tiny(context(await live.connect("generator"), tmp_path), trouble)
    async with living(actor):
        await emptied(admin)
    assert actor.done == ["t1"]
    assert await stored(admin, DEAD) == 0


async def test_a_message_whose_retries_are_used_up_is_given_up_with_its_group(
    live: LiveBus, admin: Bus, tmp_path: Path
) -> None:
    async def never(_: Delivery) -> None:
        raise Retry("the sandbox is away", after_s=0.01)

    await publish_turns(admin, 1)
    actor = Tiny(context(await live.connect("generator"), tmp_path), never)
    async with living(actor):
        (letter,) = await letters(admin)
        await emptied(admin)
    assert actor.deliveries == list(range(1, MAX_DELIVERIES + 1))
    assert (letter.reason, letter.group_id) == (DeadReason.EXHAUSTED, "g1")
    assert "the sandbox is away" in letter.error


async def test_a_message_that_killed_every_handler_is_given_up_unhandled(
    live: LiveBus, admin: Bus, tmp_path: Path
) -> None:
    bus = await live.connect("generator")
    await publish_turns(admin, 1)
    dying = PullRequests(bus, TURNS.stream("test"), TURNS.durable("generator"))
    for _ in range(MAX_DELIVERIES):
        (message,) = await dying.fetch(1, 1 << 20, 2.0)
        await message.nak()
    await dying.close()
    actor = Tiny(context(bus, tmp_path))
    async with living(actor):
        (letter,) = await letters(admin)
        await emptied(admin)
    assert actor.begun == []
    assert (letter.reason, letter.group_id) == (DeadReason.EXHAUSTED, "g1")


@pytest.mark.usefixtures("quick")
async def test_a_handler_longer_than_the_ack_wait_is_not_doubled(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    async def work(_: Delivery) -> None:
        await asyncio.sleep(2.2)  # twice the ack wait: the server's clock can not be injected

    await publish_turns(admin, 1)
    one = QuickTiny(context(await live.connect("generator"), tmp_path, 0), work)
    two = QuickTiny(context(await live.connect("generator"), tmp_path, 1), work)
    async with living(one), living(two):
        await emptied(admin)
    assert one.deliveries + two.deliveries == [1]
    assert await stored(admin, ROLLOUTS) == 1


async def test_a_drain_lets_handlers_finish_and_redelivers_nothing(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    release = asyncio.Event()
    await publish_turns(admin, *range(20))
    one = Tiny(context(await live.connect("generator"), tmp_path, 0), lambda _: release.wait())
    two = Tiny(context(await live.connect("generator"), tmp_path, 1))
    async with living(one):
        await until(lambda: len(one.begun) == one.limit)
        one.draining.set()
        async with living(two):
            await until(lambda: len(two.done) == 20 - one.limit)
            release.set()
            await emptied(admin)
    assert len(one.done) == one.limit
    assert set(one.deliveries + two.deliveries) == {1}
    assert await stored(admin, ROLLOUTS) == 20


async def test_what_a_drain_can_not_finish_goes_to_another_at_once(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    await publish_turns(admin, 1, 2, 3)
    one = Tiny(context(await live.connect("generator"), tmp_path, 0), lambda _: asyncio.Event().wait())
    async with living(one, drain_s=0.1):
        await until(lambda: len(one.begun) == 3)
    two = Tiny(context(await live.connect("generator"), tmp_path, 1))
    started = time.monotonic()
    async with living(two):
        await emptied(admin)
    assert time.monotonic() - started < TURNS.ack_wait_s / 2
    assert sorted(two.done) == ["t1", "t2", "t3"]
    assert one.done == []


async def test_an_idle_actor_drains_at_once(live: LiveBus, tmp_path: Path) -> None:
    actor = Tiny(context(await live.connect("generator"), tmp_path))
    async with living(actor) as life:
        await until(lambda: actor.state == "running")
        await until(lambda: life._inboxes[0]._keeper)
        started = time.monotonic()
    assert time.monotonic() - started < 1.0


async def test_messages_on_their_way_to_a_draining_actor_are_given_back(
    live: LiveBus, admin: Bus, tmp_path: Path
) -> None:
    await publish_turns(admin, *range(200))
    one = Tiny(context(await live.connect("generator"), tmp_path, 0))
    one.limit = 200
    two = Tiny(context(await live.connect("generator"), tmp_path, 1))
    async with living(one):
        await until(lambda: one.begun)
    started = time.monotonic()
    async with living(two):
        await emptied(admin)
    assert time.monotonic() - started < TURNS.ack_wait_s / 2
    assert sorted(one.done + two.done) == sorted(f"t{n}" for n in range(200))


async def test_an_actor_recovers_when_its_consumer_is_deleted(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    actor = Tiny(context(await live.connect("generator"), tmp_path))
    async with living(actor):
        await publish_turns(admin, 1)
        await emptied(admin)
        await admin.js.delete_consumer(TURNS.stream("test"), TURNS.durable("generator"))
        await publish_turns(admin, 2)
        await emptied(admin)
    assert actor.done == ["t1", "t2"]


async def test_what_comes_again_while_it_is_handled_is_not_begun_twice(
    live: LiveBus, admin: Bus, tmp_path: Path
) -> None:
    release, name = asyncio.Event(), (TURNS.stream("test"), TURNS.durable("generator"))
    actor = Tiny(context(await live.connect("generator"), tmp_path), lambda _: release.wait())

    async def again() -> bool:
        with contextlib.suppress(nats.js.errors.NotFoundError):
            return (await admin.js.consumer_info(*name)).delivered.consumer_seq == 2
        return False

    async with living(actor):
        await publish_turns(admin, 1, 2)
        await until(lambda: len(actor.begun) == 2)
        await admin.js.delete_consumer(*name)
        await until(again)
        release.set()
        await emptied(admin)
    assert sorted(actor.done) == ["t1", "t2"]
    assert await stored(admin, ROLLOUTS) == 2
    assert actor.counters["duplicates"] == 0


async def test_an_actor_outlives_the_deletion_of_its_stream(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    actor = Tiny(context(await live.connect("generator"), tmp_path))
    async with living(actor):
        await publish_turns(admin, 1)
        await emptied(admin)
        with structlog.testing.capture_logs() as logs:
            await admin.js.delete_stream(TURNS.stream("test"))
            await until(lambda: any(entry["event"] == "consumer not declared" for entry in logs))
        await admin.request_raw(
            f"$JS.API.STREAM.CREATE.{TURNS.stream('test')}", json.dumps(stream_config(TURNS, "test")).encode()
        )
        await publish_turns(admin, 2)
        await emptied(admin)
    assert actor.done == ["t1", "t2"]


@pytest.mark.usefixtures("quick")
async def test_nothing_is_lost_or_doubled_when_the_server_is_killed_under_load(
    live: LiveBus, admin: Bus, tmp_path: Path
) -> None:
    actor = QuickTiny(context(await live.connect("generator"), tmp_path))
    actor.limit = 32

    async def publish() -> None:
        for number in range(500):
            await publish_turns(admin, number)

    async with living(actor):
        publishing = asyncio.create_task(publish())
        for least in (100, 300):
            await until(lambda least=least: len(actor.done) > least)
            live.server._process.kill()
            await live.server.wait()
            await live.server.start()
        await publishing
        await until(lambda: len(set(actor.done)) == 500, 40)
        await emptied(admin)
    groups = [record.group_id for record in await waiting(admin, ROLLOUTS)]
    assert sorted(groups) == sorted(f"g{number}" for number in range(500))
    assert await stored(admin, DEAD) == 0


async def test_a_full_stream_holds_its_publishers_back_until_there_is_room(
    live: LiveBus, admin: Bus, tmp_path: Path
) -> None:
    small = stream_config(ROLLOUTS, "test") | {"max_bytes": 8_000}
    await admin.request_raw(f"$JS.API.STREAM.UPDATE.{ROLLOUTS.stream('test')}", json.dumps(small).encode())
    await publish_turns(admin, *range(40))
    generator = await live.connect("generator")
    actor = Tiny(context(generator, tmp_path))
    verifier = PullRequests(await live.connect("verifier"), ROLLOUTS.stream("test"), ROLLOUTS.durable("verifier"))
    taken: list[str] = []
    async with living(actor):
        await until(lambda: len(actor.done) > actor.limit)
        with pytest.raises(BusFull, match="test-rollouts is at its bound"):
            await _fill(generator)
        assert len(actor.done) < 40
        assert await stored(admin, TURNS) >= 40 - len(actor.done)
        while len(set(taken)) < 40:
            for message in await verifier.fetch(4, 1 << 20, 2.0):
                records = await admin.unpack(message.data, message.headers)
                taken += [record.group_id for record in records if record.group_id.startswith("g")]
                await message.ack()
        await emptied(admin)
    await verifier.close()
    assert sorted(taken) == sorted(f"g{number}" for number in range(40))
    assert await stored(admin, DEAD) == 0


async def _fill(generator: Bus) -> None:
    for number in range(100):
        await generator.publish(ROLLOUTS, [rollout(f"probe{number}")], "sums", deadline_s=0.2)


async def test_no_more_is_in_flight_than_the_actor_allows(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    async def breathe(_: Delivery) -> None:
        await asyncio.sleep(0)

    await publish_turns(admin, *range(60))
    actor = Tiny(context(await live.connect("generator"), tmp_path), breathe)
    actor.limit = 3
    async with living(actor):
        await emptied(admin)
    assert actor.most_at_once == 3
    assert len(actor.done) == 60


async def test_a_pause_begins_nothing_new_until_it_is_over(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    person = await live.connect("user")
    actor = Tiny(context(await live.connect("generator"), tmp_path))

    async def asks_for_nothing() -> bool:
        info = await admin.js.consumer_info(TURNS.stream("test"), TURNS.durable("generator"))
        return info.num_waiting == 0 and info.num_ack_pending + info.num_pending == 1

    async with living(actor):
        await publish_turns(admin, 1)
        await emptied(admin)
        await until(lambda: _order(person, "pause", actor, "paused"))
        await publish_turns(admin, 2)
        await until(asks_for_nothing)
        assert actor.begun == ["t1"]
        await until(lambda: _order(person, "resume", actor, "running"))
        await emptied(admin)
    assert actor.begun == ["t1", "t2"]


async def _order(person: Bus, command: str, actor: Tiny, wanted: str) -> bool:
    """Give an order until it is followed: an actor hears only those that come after its start."""
    if actor.state != wanted:
        await person.publish(CONTROL, [Control(command=command, kind="generator", sent_s=0)], "generator")
        await asyncio.sleep(0.1)
    return actor.state == wanted


async def test_two_instances_share_the_work(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    both = asyncio.Event()
    one = Tiny(context(await live.connect("generator"), tmp_path, 0), lambda _: both.wait())
    two = Tiny(context(await live.connect("generator"), tmp_path, 1), lambda _: both.wait())
    async with living(one), living(two):
        await publish_turns(admin, *range(16))
        await until(lambda: len(one.begun) + len(two.begun) == 16)
        both.set()
        await emptied(admin)
    assert len(one.done) == len(two.done) == 8
    assert sorted(one.done + two.done) == sorted(f"t{n}" for n in range(16))


class Only(Tiny):
    singleton = True


async def test_a_singleton_takes_back_at_once_what_a_dead_predecessor_held(
    live: LiveBus, admin: Bus, tmp_path: Path
) -> None:
    await publish_turns(admin, 1, 2, 3)
    dead = PullRequests(await live.connect("generator"), TURNS.stream("test"), TURNS.durable("generator"))
    assert len(await dead.fetch(3, 1 << 20, 2.0)) >= 1
    actor = Only(context(await live.connect("generator"), tmp_path))
    started = time.monotonic()
    async with living(actor):
        await emptied(admin)
    assert time.monotonic() - started < TURNS.ack_wait_s / 2
    assert sorted(actor.done) == ["t1", "t2", "t3"]


async def test_an_output_belongs_to_the_trace_of_its_input(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    telemetry = ops_telemetry.setup("generator", instance="g", run="test", folder=tmp_path, metrics=False)
    bus = await live.connect("generator")
    bus.telemetry = admin.telemetry = telemetry
    with telemetry.span("task", root=True) as span:
        trace_id = f"{span.get_span_context().trace_id:032x}"
        await publish_turns(admin, 1)
    async with living(Tiny(context(bus, tmp_path, telemetry=telemetry))):
        await emptied(admin)
    made = await admin.get(ROLLOUTS, 1)
    assert made.headers["traceparent"].split("-")[1] == trace_id
    telemetry.shutdown()


async def test_a_claimed_payload_is_freed_once_it_is_acknowledged(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    big = turn(1).model_copy(update={"task_id": "x" * 200})
    many = [big] * 5000
    await admin.publish(TURNS, many, "sums", msg_id="big")
    assert await stored(admin, BLOBS) > 1
    async with living(Tiny(context(await live.connect("generator"), tmp_path))):
        await emptied(admin)
        await emptied(admin, BLOBS)
    assert await stored(admin, ROLLOUTS) == 1


async def test_a_dead_letter_holds_a_claimed_payload_whole(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    payload = os.urandom(1_500_000)
    claim = await blobs.put(admin, payload)
    found = {headers.SCHEMA: "turn/1", headers.CLAIM: claim}
    await admin.publish_bytes(TURNS.subject("test", "sums"), b"", found, TURNS.stream("test"))
    async with living(Tiny(context(await live.connect("generator"), tmp_path))):
        (letter,) = await letters(admin)
        await emptied(admin)
    assert letter.payload == payload
    assert headers.CLAIM not in letter.headers
    with pytest.raises(BlobGone, match="chunks are gone"):
        await blobs.get(admin, claim)
