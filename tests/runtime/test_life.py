"""The life of an actor: it answers while busy, hears orders, fails with its parts, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from messages import ActorState, Control, DeadReason, Heartbeat, Step, decode
from messages.topics import CONTROL, HEARTBEATS, ROLLOUTS, STEPS
from runtime.actor import Actor, Delivery, follows
from runtime.bus import Bus
from runtime.life import Life
from runtime.parcel import Received
from runtime.permissions import health_subject
from tests.conftest import RUN, LiveBus
from tests.runtime.tiny import Tiny, context, emptied, letters, living, publish_turns, until


@pytest.fixture
async def admin(live: LiveBus) -> Bus:
    return await live.connect()


def step(number: int) -> Step:
    return Step(epoch=1, version=number, batch_id=f"b{number}", batch_number=number, stepped=True, finished_s=0.0)


async def beat(bus: Bus, kind: str = "generator") -> Heartbeat | None:
    found = await bus.last(HEARTBEATS, kind, f"{kind}-0")
    return found.record if found else None


async def test_a_busy_actor_beats_and_answers(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    person, release = await live.connect("user"), asyncio.Event()
    actor = Tiny(context(await live.connect("generator"), tmp_path), lambda _: release.wait())
    async with living(actor):
        await publish_turns(admin, 1, 2)
        await until(lambda: len(actor.begun) == 2)
        answer = await person.nc.request(health_subject(RUN, "generator", "generator-0"), b"", timeout=2)
        (now,) = decode("heartbeat/1", answer.data)
        assert (now.state, now.in_flight, now.counters["handled"]) == (ActorState.RUNNING, 2, 2)

        async def said() -> bool:
            found = await beat(person)
            return found is not None and found.in_flight == 2

        await until(said)
        release.set()
    last = await beat(person)
    assert (last.state, last.in_flight, last.counters["handled"]) == (ActorState.STOPPED, 0, 2)


class Watcher(Actor):
    """Follows the steps and fails on the odd ones."""

    kind = "evaluator"

    def __init__(self, context) -> None:
        super().__init__(context)
        self.seen: list[int] = []

    @follows(STEPS, "all")
    async def on_step(self, received: Received) -> None:
        if received.record.version % 2:
            raise LookupError(f"step {received.record.version}")
        self.seen.append(received.record.version)


async def test_a_failing_follow_handler_makes_a_dead_letter_and_the_following_goes_on(
    live: LiveBus, admin: Bus, tmp_path: Path
) -> None:
    for number in range(4):
        await admin.publish(STEPS, [step(number)], "1")
    actor = Watcher(context(await live.connect("evaluator"), tmp_path, kind="evaluator"))
    async with living(actor):
        found = await letters(admin, 2)
        await until(lambda: actor.seen == [0, 2])
    assert [(letter.topic, letter.reason, letter.stream_seq, letter.error) for letter in found] == [
        ("steps", DeadReason.BUG, 2, "LookupError: step 1"),
        ("steps", DeadReason.BUG, 4, "LookupError: step 3"),
    ]
    assert decode("step/1", found[0].payload) == [step(1)]


async def fails() -> None:
    raise ArithmeticError("in the background")


async def test_the_failure_of_a_background_task_is_the_actors(live: LiveBus, tmp_path: Path) -> None:
    class Doomed(Tiny):
        async def start(self) -> None:
            self.spawn(fails(), "doomed")

    with pytest.raises(ArithmeticError, match="in the background"):
        await asyncio.wait_for(Life(Doomed(context(await live.connect("generator"), tmp_path))).run(), 10)


async def test_the_failure_of_a_task_that_a_handler_began_is_the_actors(
    live: LiveBus, admin: Bus, tmp_path: Path
) -> None:
    async def begin(_: Delivery) -> None:
        actor.spawn(fails(), "late")

    actor = Tiny(context(await live.connect("generator"), tmp_path), begin)
    living_ = asyncio.create_task(Life(actor).run())
    await until(lambda: actor.state == "running")
    await publish_turns(admin, 1)
    with pytest.raises(ArithmeticError):
        await asyncio.wait_for(living_, 10)
    await emptied(admin)


async def test_a_background_task_that_ends_well_ends_nothing(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    class Brief(Tiny):
        async def start(self) -> None:
            self.spawn(asyncio.sleep(0), "brief")

    actor = Brief(context(await live.connect("generator"), tmp_path))
    async with living(actor):
        await until(lambda: not actor.background)
        await publish_turns(admin, 1)
        await emptied(admin)
    assert actor.done == ["t1"]


class Slow(Tiny):
    """Its start never ends by itself, and it can not be drained nor stopped before it has."""

    def __init__(self, context) -> None:
        super().__init__(context)
        self.log_: list[str] = []

    async def start(self) -> None:
        self.log_.append("start")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.log_.append("cancelled")
            raise

    async def drain(self) -> None:
        self.log_.append("drain")

    async def stop(self) -> None:
        self.log_.append("stop")
        raise AttributeError("engine")


async def test_an_order_to_drain_during_the_start_ends_it(live: LiveBus, tmp_path: Path) -> None:
    actor = Slow(context(await live.connect("generator"), tmp_path))
    async with living(actor):
        await until(lambda: actor.log_ == ["start"])
        actor.draining.set()
        await until(lambda: actor.state == "stopped", 5)
    assert actor.log_ == ["start", "cancelled", "stop"]


async def test_a_failing_start_is_what_the_process_hears_of(live: LiveBus, tmp_path: Path) -> None:
    class Unable(Slow):
        async def start(self) -> None:
            raise FileNotFoundError("no such model")

    actor = Unable(context(await live.connect("generator"), tmp_path))
    with pytest.raises(FileNotFoundError, match="no such model"):
        await asyncio.wait_for(Life(actor).run(), 10)
    assert actor.state is ActorState.STOPPED


async def test_a_drain_that_hangs_is_given_up(live: LiveBus, tmp_path: Path) -> None:
    class Stubborn(Tiny):
        async def drain(self) -> None:
            await asyncio.Event().wait()

    actor = Stubborn(context(await live.connect("generator"), tmp_path))
    async with asyncio.timeout(5), living(actor, drain_s=0.1):
        await until(lambda: actor.state == "running")


async def test_an_order_to_drain_reaches_its_kind_only(live: LiveBus, tmp_path: Path) -> None:
    person = await live.connect("user")
    actor = Tiny(context(await live.connect("generator"), tmp_path))
    task = asyncio.create_task(Life(actor).run())
    await until(lambda: actor.state == "running")
    await person.publish(CONTROL, [Control(command="drain", kind="verifier", sent_s=0)], "verifier")

    async def ordered() -> bool:
        if not task.done():
            await person.publish(CONTROL, [Control(command="pause", kind="generator", sent_s=0)], "generator")
        return actor.state == "paused"

    await until(ordered)
    assert not actor.draining.is_set()
    await person.publish(CONTROL, [Control(command="drain", sent_s=0)], "all")
    await asyncio.wait_for(task, 10)


async def test_gauges_that_fail_do_not_make_an_actor_look_dead(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    class Shy(Tiny):
        def gauges(self) -> dict[str, float]:
            raise KeyError("engine")

    async with living(Shy(context(await live.connect("generator"), tmp_path))):
        await until(lambda: _beats(admin, 2))


async def _beats(admin: Bus, least: int) -> bool:
    return (await admin.stream_state(HEARTBEATS)).last_seq >= least


async def test_an_ended_life_leaves_no_task_behind(live: LiveBus, admin: Bus, tmp_path: Path) -> None:
    bus = await live.connect("generator")
    for each in (bus, admin):
        await each.stream_state(ROLLOUTS)  # the client's own task for answers lives as long as the connection
    before = asyncio.all_tasks()
    actor = Tiny(context(bus, tmp_path))
    async with living(actor):
        await publish_turns(admin, 1)
        await emptied(admin)
    await until(lambda: asyncio.all_tasks() <= before, 1)
