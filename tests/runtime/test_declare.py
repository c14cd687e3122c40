"""Declaring: twice is harmless, another configuration is refused in one line."""

from __future__ import annotations

import dataclasses
import json

import pytest

from messages import TOPICS, Retention
from messages.topics import STEPS, TASKS, TURNS
from runtime import declare as declaring
from runtime.bus import Bus
from runtime.declare import consumer_config, declare, declare_consumer, stream_config
from runtime.errors import DeclarationMismatch, StreamMissing, UserError
from tests.conftest import RUN, LiveBus
from tests.runtime.tiny import publish_turns


@pytest.fixture
async def admin(live: LiveBus) -> Bus:
    return await live.connect()


async def test_every_row_of_the_table_is_on_the_server_with_its_bounds(admin: Bus) -> None:
    found = {info.config.name: info.config for info in await admin.js.streams_info()}
    assert found.keys() == {topic.stream(RUN) for topic in TOPICS}
    for topic in TOPICS:
        config = found[topic.stream(RUN)]
        assert (config.max_bytes, config.subjects) == (topic.max_bytes, [topic.all_subjects(RUN)])
        assert (config.retention == "workqueue") is (topic.retention is Retention.WORK)
        consumers = {info.name for info in await admin.js.consumers_info(topic.stream(RUN))}
        assert consumers == ({topic.durable(topic.consumers[0])} if topic.retention is Retention.WORK else set())


async def test_declaring_again_changes_nothing_and_keeps_every_message(admin: Bus) -> None:
    await publish_turns(admin, 1, 2)
    await declare(admin)
    await declare_consumer(admin, TURNS, "generator")
    assert (await admin.stream_state(TURNS)).messages == 2


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        (dataclasses.replace(STEPS, max_bytes=1 << 20), "max_bytes is 268435456, wanted 1048576"),
        (dataclasses.replace(TASKS, discard_old=True), "discard is 'new', wanted 'old'"),
        (dataclasses.replace(TURNS, deduplicate_s=60), "duplicate_window is 600000000000, wanted 60000000000"),
    ],
)
async def test_a_stream_of_another_release_is_refused_in_one_line(
    admin: Bus, monkeypatch: pytest.MonkeyPatch, topic, says: str
) -> None:
    monkeypatch.setattr(declaring, "TOPICS", (topic,))
    with pytest.raises(DeclarationMismatch) as caught:
        await declare(admin)
    assert isinstance(caught.value, UserError)
    assert f"stream {topic.stream(RUN)} exists with another configuration" in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_consumer_of_another_release_is_refused_and_not_overwritten(admin: Bus) -> None:
    longer = dataclasses.replace(TURNS, ack_wait_s=99)
    with pytest.raises(DeclarationMismatch, match="ack_wait is 15000000000, wanted 99000000000"):
        await declare_consumer(admin, longer, "generator")
    assert (await admin.js.consumer_info(TURNS.stream(RUN), TURNS.durable("generator"))).config.ack_wait == 15


async def test_a_stream_that_nobody_declared_is_refused(admin: Bus) -> None:
    config = stream_config(STEPS, "other") | {"metadata": {}}
    await admin.request_raw(f"$JS.API.STREAM.CREATE.{STEPS.stream('other')}", json.dumps(config).encode())
    other = dataclasses.replace(admin, run="other")
    with pytest.raises(DeclarationMismatch, match=r"other-steps exists .*made by another release"):
        await declare(other)


async def test_a_consumer_of_a_missing_stream_says_that_the_stream_is_missing(admin: Bus) -> None:
    await admin.js.delete_stream(TURNS.stream(RUN))
    with pytest.raises(StreamMissing, match="test-turns"):
        await declare_consumer(admin, TURNS, "generator")


async def test_two_runs_live_side_by_side(admin: Bus) -> None:
    other = dataclasses.replace(admin, run="other")
    await declare(other)
    await publish_turns(other, 1)
    assert (await other.stream_state(TURNS)).messages == 1
    assert (await admin.stream_state(TURNS)).messages == 0


def test_a_fingerprint_depends_on_everything_that_is_declared() -> None:
    marks = {
        json.dumps(consumer_config(dataclasses.replace(TURNS, **change), "generator", RUN)["metadata"])
        for change in ({}, {"ack_wait_s": 1.0}, {"max_ack_pending": 1}, {"name": "x"})
    }
    assert len(marks) == 4
