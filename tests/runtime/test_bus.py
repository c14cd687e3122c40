"""The bus against a real server: what is published is stored once, read back whole, and refused to strangers."""

from __future__ import annotations

import asyncio

import nats.errors
import numpy as np
import pytest

from messages import ChatMessage, Heartbeat, MessageError, Rollout, Sampling, Step, Turn, derive, encode, headers
from messages.topics import BATCHES, HEARTBEATS, ROLLOUTS, STEPS, TURNS, WEIGHTS
from runtime.bus import Bus
from runtime.errors import BusUnreachable
from tests.conftest import LiveBus


def turn(number: int) -> Turn:
    return Turn(
        id=f"t{number}",
        group_id=f"g{number}",
        task_id="task",
        task_seq=1,
        domain="sums",
        messages=(ChatMessage(role="user", content="1+1="),),
        n=2,
        sampling=Sampling(max_tokens=4),
        admitted_version=0,
    )


def step(number: int) -> Step:
    return Step(epoch=1, version=number, batch_id=f"b{number}", batch_number=number, stepped=True, finished_s=0.0)


def rollout(n_tokens: int) -> Rollout:
    return Rollout(
        id="g.0",
        group_id="g",
        task_id="t",
        task_seq=1,
        domain="sums",
        index=0,
        n=1,
        prompt_ids=np.arange(3, dtype=np.int32),
        token_ids=np.arange(n_tokens, dtype=np.int32),
        logprobs=np.full(n_tokens, -0.5, dtype=np.float32),
        loss_mask=np.ones(n_tokens, dtype=np.uint8),
        versions=np.zeros(n_tokens, dtype=np.int32),
        epoch=0,
        temperature=1.0,
        finish_reason="stop",
        response="x",
        generator="generator-0",
        started_s=0.0,
        finished_s=1.0,
    )


async def test_the_same_message_id_is_stored_once(live: LiveBus) -> None:
    bus = await live.connect("curriculum")
    first = await bus.publish(TURNS, [turn(1)], "sums", msg_id=derive("a"))
    again = await bus.publish(TURNS, [turn(1)], "sums", msg_id=derive("a"))
    assert (first.duplicate, again.duplicate) == (False, True)
    assert (await bus.stream_state(TURNS)).messages == 1


async def test_following_sees_everything_in_order_across_a_killed_server(live: LiveBus) -> None:
    admin = await live.connect()
    seen: list[int] = []

    async def follow() -> None:
        async for received in admin.follow(STEPS, "all"):
            seen.append(received.record.version)
            if len(seen) == 60:
                return

    reader = asyncio.create_task(follow())
    for number in range(30):
        await admin.publish(STEPS, [step(number)], "1", msg_id=derive(number))
    live.server._process.kill()
    await live.server.wait()
    await live.server.start()
    for number in range(30, 60):
        await admin.publish(STEPS, [step(number)], "1", msg_id=derive(number))
    await asyncio.wait_for(reader, 30)
    assert seen == list(range(60))


async def test_a_large_rollout_travels_by_claim_check(live: LiveBus) -> None:
    bus = await live.connect("generator")
    stored = await bus.publish(ROLLOUTS, [rollout(300_000)], "sums", msg_id=derive("big"))
    received = await (await live.connect()).get(ROLLOUTS, stored.seq)
    assert received is not None
    np.testing.assert_array_equal(received.record.token_ids, np.arange(300_000))


async def test_the_last_message_of_a_subject_is_found(live: LiveBus) -> None:
    bus = await live.connect("generator")
    beat = Heartbeat(
        kind="generator", instance="generator-0", host="h", pid=1, state="running", started_s=0, sent_s=1, in_flight=0,
        loop_lag_s=0, rss_bytes=1,
    )  # fmt: skip
    await bus.publish(HEARTBEATS, [beat], "generator", "generator-0")
    found = await (await live.connect("user")).last(HEARTBEATS, "generator", "generator-0")
    assert found is not None
    assert found.record == beat
    assert await (await live.connect("user")).last(HEARTBEATS, "learner", "learner-0") is None


async def test_reading_stops_where_the_topic_ends(live: LiveBus) -> None:
    admin = await live.connect()
    assert await admin.read(STEPS) == []
    for number in range(3):
        await admin.publish(STEPS, [step(number)], "1")
    assert [received.record.version for received in await admin.read(STEPS)] == [0, 1, 2]


async def test_an_unreachable_bus_is_one_clear_line() -> None:
    with pytest.raises(BusUnreachable, match=r"no bus at nats://127.0.0.1:1: "):
        await Bus.connect("nats://127.0.0.1:1", "test", timeout_s=1)


@pytest.mark.parametrize(("kind", "topic"), [("generator", WEIGHTS), ("generator", BATCHES), ("verifier", TURNS)])
async def test_an_actor_can_not_publish_what_is_not_its_own(live: LiveBus, kind: str, topic) -> None:
    bus = await live.connect(kind)
    with pytest.raises(nats.errors.TimeoutError):
        await bus.nc.request(topic.subject("test", "x"), b"", timeout=0.3)
    assert (await (await live.connect()).stream_state(topic)).messages == 0


async def test_the_newest_of_a_topic_is_the_newest_that_can_be_read(live: LiveBus) -> None:
    bus = await live.connect()
    await bus.publish(STEPS, [step(1)], "1")
    for found in ({}, {headers.SCHEMA: "step/1"}, {headers.SCHEMA: "step/9"}):
        await bus.publish_bytes(STEPS.subject(bus.run, "1"), b"garbage", found, STEPS.stream(bus.run))
    await bus.publish_bytes(
        STEPS.subject(bus.run, "1"), encode([turn(1)]), {headers.SCHEMA: "turn/1"}, STEPS.stream(bus.run)
    )
    newest = await bus.last(STEPS)
    assert newest is not None
    assert (newest.seq, newest.record.version) == (1, 1)
    with pytest.raises(MessageError):
        await bus.get(STEPS, 5)
