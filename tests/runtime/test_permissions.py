"""Only who may, may: every kind against every topic of the table, on a real server with a real user per kind."""

from __future__ import annotations

import nats.errors
import pytest
import structlog.testing

from messages import TOPICS, Retention, Snapshot
from messages.topics import EVERY_ACTOR, ROLLOUTS, SNAPSHOTS, TURNS, USER, WEIGHTS
from runtime.bus import Bus
from runtime.errors import BusUnreachable, Forbidden
from runtime.permissions import ADMIN, health_subject, users, weights_request_subject
from runtime.pull import PullRequests
from tests.conftest import RUN, LiveBus
from tests.runtime.test_pull import step
from tests.runtime.tiny import publish_turns

KINDS = (*EVERY_ACTOR, USER)


async def fence(bus: Bus) -> None:
    """Wait until the server has seen, and answered, all that was sent (the first PING overtakes what waits)."""
    await bus.nc.flush()
    await bus.nc.flush()


async def denials(bus: Bus, subjects: list[str]) -> set[str]:
    """Which of these subjects the server refuses to take from a user (in lower case, as its errors come)."""
    refused: set[str] = set()

    async def note(error: Exception) -> None:
        refused.add(str(error).split('"')[1])

    bus.nc._error_cb = note
    for subject in subjects:
        await bus.nc.publish(subject, b"")
    await fence(bus)
    return refused


@pytest.fixture
async def admin(live: LiveBus) -> Bus:
    return await live.connect()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_kind_publishes_to_its_own_topics_and_to_no_other(live: LiveBus, admin: Bus, kind: str) -> None:
    bus = await live.connect(kind)
    replays = {topic for topic in TOPICS if kind == USER and topic.retention is Retention.WORK}
    allowed = {topic for topic in TOPICS if kind in topic.publishers} | replays
    refused = await denials(bus, [topic.subject(RUN, "x", kind) for topic in TOPICS])
    assert refused == {topic.subject(RUN, "x", kind) for topic in TOPICS if topic not in allowed}
    for topic in TOPICS:
        assert ((await admin.stream_state(topic)).last_seq > 0) is (topic in allowed), topic.name


@pytest.mark.parametrize("kind", KINDS)
async def test_a_kind_takes_and_acknowledges_its_own_work_and_no_other(live: LiveBus, kind: str) -> None:
    bus = await live.connect(kind)
    work = [(topic, consumer) for topic in TOPICS if topic.retention is Retention.WORK for consumer in topic.consumers]
    for topic, consumer in work:
        where = f"{topic.stream(RUN)}.{topic.durable(consumer)}"
        subjects = [f"$JS.API.CONSUMER.MSG.NEXT.{where}", f"$JS.ACK.{where}.1.1.1.1.0"]
        refused = await denials(bus, subjects)
        assert refused == (set() if consumer == kind else {subject.lower() for subject in subjects}), (topic, kind)


@pytest.mark.parametrize("kind", KINDS)
async def test_no_kind_changes_streams_or_hears_what_is_not_its_own(live: LiveBus, admin: Bus, kind: str) -> None:
    bus = await live.connect(kind)
    subjects = [f"$JS.API.STREAM.{verb}.{TURNS.stream(RUN)}" for verb in ("CREATE", "UPDATE", "DELETE", "PURGE")]
    subjects += [f"$JS.API.STREAM.MSG.DELETE.{TURNS.stream(RUN)}", "$SYS.REQ.SERVER.PING", "anything"]
    subjects += [TURNS.subject("another-run", "x"), f"$JS.API.STREAM.INFO.{TURNS.stream('another-run')}"]
    assert await denials(bus, subjects) == {subject.lower() for subject in subjects}
    others = [f"_INBOX.{other}.>" for other in (*KINDS, ADMIN) if other != kind]
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error))

    bus.nc._error_cb = note
    wanted = [*others, ">", "_INBOX.>", "busrl.>", TURNS.all_subjects(RUN), "$JS.ACK.>"]
    for subject in wanted:
        await bus.nc.subscribe(subject)
    await fence(bus)
    assert len(refused) == len(wanted)


async def test_a_verifier_can_not_acknowledge_the_generators_work(live: LiveBus, admin: Bus) -> None:
    await publish_turns(admin, 1)
    generator = PullRequests(await live.connect("generator"), TURNS.stream(RUN), TURNS.durable("generator"))
    (message,) = await generator.fetch(1, 1 << 20, 2.0)
    verifier = await live.connect("verifier")
    with pytest.raises(nats.errors.TimeoutError):
        await verifier.nc.request(message.reply, b"+ACK", timeout=0.2)
    assert (await admin.stream_state(TURNS)).messages == 1
    await message.ack_sync()
    assert (await admin.stream_state(TURNS)).messages == 0
    await generator.close()


async def test_what_a_user_may_not_do_is_said_in_the_log_and_raised(
    live: LiveBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.bus.PUBLISH_TIMEOUT_S", 0.2)
    bus = await live.connect("generator", name="generator-0")
    with structlog.testing.capture_logs() as logs, pytest.raises(Forbidden, match="generator-0 may not publish to"):
        await bus.publish(WEIGHTS, [step(1)], "Epoch-1", deadline_s=None)
    assert logs[0]["event"] == "bus: not permitted"
    assert logs[0]["subject"] == "busrl.test.weights.epoch-1"


async def test_a_person_asks_any_actor_for_its_health_and_a_generator_the_learner_for_weights(live: LiveBus) -> None:
    heard: list[str] = []

    async def answer(message) -> None:
        heard.append(message.subject)
        await message.respond(b"ok")

    learner, person, generator = [await live.connect(kind) for kind in ("learner", USER, "generator")]
    await learner.nc.subscribe(health_subject(RUN, "learner", "learner-0"), cb=answer)
    await learner.nc.subscribe(weights_request_subject(RUN), cb=answer)
    await fence(learner)
    assert (await person.nc.request(health_subject(RUN, "learner", "learner-0"), timeout=2)).data == b"ok"
    assert (await generator.nc.request(weights_request_subject(RUN), timeout=2)).data == b"ok"
    with pytest.raises(nats.errors.TimeoutError):
        await (await live.connect("verifier")).nc.request(weights_request_subject(RUN), timeout=0.2)
    assert len(heard) == 2


async def test_a_stranger_does_not_get_in(live: LiveBus) -> None:
    for login in ({}, {"user": "learner", "password": "guess"}, {"user": "nobody", "password": "x"}):
        with pytest.raises(BusUnreachable, match="are the credentials its own"):
            await Bus.connect(live.server.url, RUN, timeout_s=1.0, **login)


def test_passwords_are_fresh_and_unlike_each_other() -> None:
    made = [user.password for user in (*users(RUN), *users(RUN))]
    assert len(set(made)) == len(made)
    assert min(map(len, made)) >= 24
    assert not any(user.password in repr(user) for user in users(RUN))


async def test_readers_of_a_work_topic_see_it_without_taking_from_it(live: LiveBus, admin: Bus) -> None:
    await publish_turns(admin, 1)
    person = await live.connect(USER)
    assert (await person.get(TURNS, 1)).record.id == "t1"
    assert (await person.stream_state(ROLLOUTS)).messages == 0
    assert (await admin.stream_state(TURNS)).messages == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_whoever_joins_over_the_bus_reads_the_run_file_there(live: LiveBus, admin: Bus, kind: str) -> None:
    await admin.publish(SNAPSHOTS, [Snapshot(kind="run", saved_s=0.0, state="the run file")], "run")
    found = await (await live.connect(kind)).last(SNAPSHOTS, "run")
    assert found is not None
    assert found.record.state == "the run file"
