"""A replayed dead letter is the same message on the same subject under a new id, and its group is open again."""

from __future__ import annotations

import pytest

from messages import DeadLetter, DeadReason, OutcomeStatus, Turn, encode, headers
from messages.task import ChatMessage, Sampling
from messages.topics import DEAD, OUTCOMES, TURNS
from runtime.errors import UserError
from runtime.replay import find_letter, read_letters, replay
from tests.conftest import RUN, LiveBus
from tests.runtime.sample_run import NOW_S

TURN = Turn(
    id="t", group_id="g", task_id="a", task_seq=1, domain="sums", messages=(ChatMessage(role="user", content="?"),),
    n=4, sampling=Sampling(max_tokens=4), admitted_version=0,
)  # fmt: skip


def letter(**changes) -> DeadLetter:
    fields = {
        "id": "abc1",
        "topic": "turns",
        "subject": TURNS.subject(RUN, "sums"),
        "stream_seq": 1,
        "actor": "generator-0",
        "reason": DeadReason.BUG,
        "error": "ValueError: no",
        "deliveries": 1,
        "group_id": "g",
        "headers": {headers.SCHEMA: "turn/1", headers.MSG_ID: "old", headers.GROUP: "g", "Nats-Sequence": "1"},
        "payload": encode([TURN]),
        "died_s": NOW_S,
    }
    return DeadLetter(**{**fields, **changes})


async def test_the_message_is_back_on_its_subject_under_a_new_id(live: LiveBus):
    bus = await live.connect("user")
    done = await replay(bus, letter())
    found = await bus.get(TURNS, done.seq)
    assert found.records == [TURN]
    assert found.subject == TURNS.subject(RUN, "sums")
    assert found.headers[headers.REPLAY] == "1"
    assert found.headers[headers.GROUP] == "g"
    assert found.headers[headers.MSG_ID] != "old"


async def test_its_group_is_open_again_before_the_message_is_there(live: LiveBus):
    bus = await live.connect("user")
    await replay(bus, letter())
    outcome = (await bus.last(OUTCOMES)).record
    assert (outcome.group_id, outcome.status, outcome.n_samples) == ("g", OutcomeStatus.REPLAYED, 4)
    assert (outcome.domain, outcome.task_id) == ("sums", "a")


async def test_replaying_twice_stores_one_message(live: LiveBus):
    bus = await live.connect("user")
    first, second = await replay(bus, letter()), await replay(bus, letter())
    assert (first.duplicate, second.duplicate) == (False, True)
    assert (await bus.stream_state(TURNS)).messages == 1


async def test_a_message_that_died_again_is_replayed_again(live: LiveBus):
    bus = await live.connect("user")
    await replay(bus, letter())
    done = await replay(bus, letter(id="abc2", headers={**letter().headers, headers.REPLAY: "1"}))
    assert not done.duplicate
    assert (await bus.get(TURNS, done.seq)).headers[headers.REPLAY] == "2"


async def test_a_message_that_does_not_decode_can_be_replayed_all_the_same(live: LiveBus):
    bus = await live.connect("user")
    broken = letter(payload=b"\xc1 not msgpack")
    assert not (await replay(bus, broken)).duplicate
    assert (await bus.last(OUTCOMES)).record.group_id == "g"


async def test_a_followed_topic_has_nothing_to_replay(live: LiveBus):
    bus = await live.connect("user")
    with pytest.raises(UserError, match="is followed and not worked on"):
        await replay(bus, letter(topic="steps"))


async def test_a_letter_without_its_message_is_refused(live: LiveBus):
    bus = await live.connect("user")
    with pytest.raises(UserError, match="holds no message"):
        await replay(bus, letter(payload=b""))


async def test_letters_are_read_and_found_by_the_beginning_of_their_id(live: LiveBus):
    writer, bus = await live.connect(), await live.connect("user")
    for name in ("abc1", "abd2"):
        await writer.publish(DEAD, [letter(id=name)], "turns")
    letters = await read_letters(bus)
    assert find_letter(letters, "abd").letter.id == "abd2"
    assert find_letter(letters, "1").letter.id == "abc1"
    with pytest.raises(UserError, match="fits 2 dead letters"):
        find_letter(letters, "ab")
    with pytest.raises(UserError, match="no dead letter 'zz'"):
        find_letter(letters, "zz")
