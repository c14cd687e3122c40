"""The replay actor on a real bus: what it composes, what it drops, and that a crash loses and doubles nothing."""

from __future__ import annotations

from typing import Any

import pytest

from actors.replay.actor import Replay
from messages import Batch, DeadLetter, DeadReason, DropReason, Outcome, Step
from messages.topics import BATCHES, DEAD, EXPERIENCES, OUTCOMES, STEPS
from tests.actors.lives import Living, Stage, run_config, until
from tests.actors.samples import experiences


async def put_group(stage: Stage, name: str, version: int = 0, msg_id: str | None = None, **changes: Any) -> None:
    await stage.put(EXPERIENCES, experiences(name, versions=(version,) * 3, **changes), "d", msg_id=msg_id)


async def batches(stage: Stage, n: int) -> list[Batch]:
    return [received.record for received in await stage.stored(BATCHES, n)]


def groups(batch: Batch) -> list[str]:
    return list(dict.fromkeys(experience.rollout.group_id for experience in batch.experiences))


async def report(stage: Stage, version: int, number: int, *, epoch: int = 1, **changes: Any) -> None:
    record = Step(
        epoch=epoch,
        version=version,
        batch_id=f"b{number}",
        batch_number=number,
        stepped=True,
        finished_s=1.0,
        **changes,
    )
    await stage.put(STEPS, [record], str(epoch))


async def forget(stage: Stage, batch_seq: int) -> None:
    """The learner has acknowledged a batch."""
    await stage.bus.js.delete_msg(BATCHES.stream(stage.bus.run), batch_seq)


async def started(stage: Stage, version: int = 0) -> Living[Replay]:
    await stage.announce(1, version)
    living = await stage.start(Replay)
    await until(lambda: living.actor.version == version)
    return living


async def test_two_groups_become_a_batch_for_the_present_version(stage: Stage) -> None:
    await started(stage)
    await put_group(stage, "a")
    await put_group(stage, "b")
    (batch,) = await batches(stage, 1)
    assert (batch.number, batch.version, groups(batch)) == (1, 0, ["a", "b"])
    assert [e.rollout.index for e in batch.experiences] == [0, 1, 0, 1]
    await stage.until_stored(EXPERIENCES, 0)


async def test_while_a_batch_is_under_way_no_other_is_composed(stage: Stage) -> None:
    living = await started(stage)
    for name in "abcd":
        await put_group(stage, name)
    await until(lambda: len(living.actor.buffer) == 2)
    assert len(await batches(stage, 1)) == 1
    await report(stage, 1, 1)
    second = (await batches(stage, 2))[1]
    assert (second.number, second.version, groups(second)) == (2, 1, ["c", "d"])


async def test_as_many_batches_wait_as_the_run_file_says_each_for_its_own_version(stage: Stage) -> None:
    stage.config = run_config(stage.folder, training="batches_ahead = 2")
    living = await started(stage)
    for name in "abcdef":
        await put_group(stage, name)
    found = await batches(stage, 2)
    await until(lambda: len(living.actor.buffer) == 2)
    assert [batch.version for batch in found] == [0, 1]


async def test_a_batch_that_took_no_step_makes_way_for_the_next(stage: Stage) -> None:
    await started(stage)
    for name in "abcd":
        await put_group(stage, name)
    await stage.until_stored(BATCHES, 1)
    await report(stage, 0, 1, reason="no group left to train")
    assert [batch.version for batch in await batches(stage, 2)] == [0, 0]


async def test_groups_that_grow_too_old_while_they_wait_are_dropped_as_stale(stage: Stage) -> None:
    living = await started(stage)
    await put_group(stage, "old", version=0)
    await until(lambda: "old" in living.actor.buffer)
    await report(stage, 2, 9)
    await until(lambda: living.actor.version == 2)
    assert "old" in living.actor.buffer  # a lag of max_lag is allowed
    await report(stage, 3, 10)
    outcome: Outcome = (await stage.parcels(OUTCOMES, 1))[0].record
    assert (outcome.group_id, outcome.reason, outcome.lag, outcome.version) == ("old", DropReason.STALE, 3, 3)
    await stage.until_stored(EXPERIENCES, 0)


async def test_a_group_that_comes_too_late_is_never_in_a_batch(stage: Stage) -> None:
    await started(stage, version=5)
    await put_group(stage, "old", version=2)
    await put_group(stage, "fresh", version=3)
    await put_group(stage, "fresher", version=5)
    (batch,) = await batches(stage, 1)
    assert groups(batch) == ["fresh", "fresher"]
    assert (await stage.parcels(OUTCOMES, 1))[0].record.group_id == "old"


async def test_before_weights_are_announced_nothing_is_composed(stage: Stage) -> None:
    living = await stage.start(Replay)
    await put_group(stage, "a")
    await put_group(stage, "b")
    await until(lambda: len(living.actor.buffer) == 2)
    await stage.announce(1, 0)
    await stage.until_stored(BATCHES, 1)


async def test_what_waits_stays_on_the_bus_through_a_crash_and_comes_back_at_once(stage: Stage) -> None:
    living = await started(stage)
    await put_group(stage, "a")
    await until(lambda: len(living.actor.buffer) == 1)
    await living.crash()
    again = await started(stage)
    await until(lambda: "a" in again.actor.buffer)
    await put_group(stage, "b")
    assert groups((await batches(stage, 1))[0]) == ["a", "b"]


async def test_drained_it_gives_back_what_waits(stage: Stage) -> None:
    living = await started(stage)
    await put_group(stage, "a")
    await until(lambda: len(living.actor.buffer) == 1)
    await living.drain()
    await stage.until_stored(EXPERIENCES, 1)
    again = await started(stage)
    await until(lambda: "a" in again.actor.buffer)


async def test_a_group_that_is_delivered_again_while_it_waits_is_not_acknowledged_before_it_is_safe(
    stage: Stage,
) -> None:
    living = await started(stage)
    await put_group(stage, "a", msg_id="first")
    await put_group(stage, "a", msg_id="second")  # what a lost acknowledgement deadline looks like
    await until(lambda: living.actor.counters["duplicates"] == 1)
    assert len(living.actor.buffer) == 1
    await stage.until_stored(EXPERIENCES, 2)
    await put_group(stage, "b")
    (batch,) = await batches(stage, 1)
    assert groups(batch) == ["a", "b"]
    await stage.until_stored(EXPERIENCES, 0)


@pytest.mark.parametrize("known_from", ["the stored batch", "the step that trained it", "the step that refused it"])
async def test_after_a_crash_a_group_of_a_batch_is_not_put_into_another(stage: Stage, known_from: str) -> None:
    """The crash came after the batch was stored and before its groups were acknowledged."""
    first = await started(stage)
    await put_group(stage, "a")
    await put_group(stage, "b")
    stored = (await stage.stored(BATCHES, 1))[0]
    await stage.until_stored(EXPERIENCES, 0)
    await first.crash()
    if known_from != "the stored batch":
        ids = {"group_ids" if "trained" in known_from else "refused_ids": ("a", "b")}
        await report(stage, 1, 1, **ids)
        await forget(stage, stored.seq)
    await put_group(stage, "a", msg_id="again-a")
    await put_group(stage, "b", msg_id="again-b")
    again = await stage.start(Replay)
    await until(lambda: again.actor.counters["duplicates"] == 2)
    await stage.until_stored(EXPERIENCES, 0)
    assert len(again.actor.buffer) == 0


async def test_after_a_restart_batches_under_way_are_waited_for_and_numbers_go_on(stage: Stage) -> None:
    first = await started(stage)
    for name in "abcd":
        await put_group(stage, name)
    await stage.until_stored(BATCHES, 1)
    await first.crash()
    again = await stage.start(Replay)
    await until(lambda: len(again.actor.buffer) == 2)
    assert set(again.actor.outstanding) == {1}
    await report(stage, 1, 1)
    assert [batch.number for batch in await batches(stage, 2)] == [1, 2]


async def test_steps_that_come_while_it_starts_are_not_missed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.config = run_config(stage.folder, training="batches_ahead = 2")
    first = await started(stage)
    for name in "abcdefgh":
        await put_group(stage, name, version=2)
    await stage.until_stored(BATCHES, 2)
    await first.crash()
    counted = Replay._find_outstanding

    async def steps_right_after(self: Replay) -> None:
        await counted(self)
        await report(stage, 1, 1)
        await report(stage, 2, 2)

    monkeypatch.setattr(Replay, "_find_outstanding", steps_right_after)
    await stage.start(Replay)
    assert [batch.number for batch in await batches(stage, 4)] == [1, 2, 3, 4]


async def test_a_batch_that_became_a_dead_letter_is_not_waited_for(stage: Stage) -> None:
    living = await started(stage)
    for name in "abcd":
        await put_group(stage, name)
    stored = (await stage.stored(BATCHES, 1))[0]
    await forget(stage, stored.seq)
    letter = DeadLetter(
        id="dead", topic=BATCHES.name, subject=stored.subject, stream_seq=stored.seq, actor="learner-0",
        reason=DeadReason.BUG, error="e", deliveries=1, group_id="a,b", died_s=1.0,
    )  # fmt: skip
    await stage.bus.publish(DEAD, [letter], BATCHES.name)
    assert groups((await batches(stage, 1))[0]) == ["c", "d"]
    assert set(living.actor.outstanding) == {2}


async def test_when_the_learner_comes_back_its_unreported_batches_are_waited_for_again(stage: Stage) -> None:
    living = await started(stage)
    await put_group(stage, "a")
    await put_group(stage, "b")
    await stage.until_stored(BATCHES, 1)
    await report(stage, 1, 1)
    await until(lambda: living.actor.version == 1 and not living.actor.outstanding)
    await stage.announce(2, 0)
    await until(lambda: set(living.actor.outstanding) == {1})
    assert (living.actor.version, living.actor.target_version) == (0, 1)
    await report(stage, 1, 1, epoch=2)
    await until(lambda: not living.actor.outstanding)


async def test_steps_of_a_learner_that_was_fenced_off_change_nothing(stage: Stage) -> None:
    living = await started(stage)
    await stage.announce(2, 0)
    await until(lambda: living.actor.epoch == 2)
    await report(stage, 7, 1, epoch=1)
    await report(stage, 1, 2, epoch=2)
    await until(lambda: living.actor.version != 0)
    assert living.actor.version == 1


async def test_it_never_holds_more_groups_than_it_may(stage: Stage) -> None:
    stage.config = run_config(stage.folder, more="[replay]\nmax_groups = 3")
    living = await stage.start(Replay)  # no weights: nothing leaves
    for i in range(8):
        await put_group(stage, f"g{i}")
    await until(lambda: len(living.actor.buffer) == 3)
    assert living.actor.counters["handled"] == 3
    await stage.until_stored(EXPERIENCES, 8)
    await stage.announce(1, 0)
    assert len(groups((await batches(stage, 1))[0])) == 2


@pytest.mark.parametrize("parcel", [experiences("a", 3)[:2], [*experiences("a")[:1], *experiences("b")[1:]]])
async def test_what_is_not_one_whole_group_is_a_dead_letter_and_is_in_no_batch(stage: Stage, parcel: Any) -> None:
    living = await started(stage)
    await stage.put(EXPERIENCES, parcel, "d")
    letter: DeadLetter = (await stage.parcels(DEAD, 1))[0].record
    assert letter.reason is DeadReason.REJECTED
    assert "not the whole group a" in letter.error
    assert len(living.actor.buffer) == 0


async def test_a_batch_that_nobody_can_read_does_not_keep_it_from_its_work(stage: Stage) -> None:
    await stage.bus.publish_bytes(BATCHES.subject(stage.bus.run, "1"), b"garbage", {}, BATCHES.stream(stage.bus.run))
    await started(stage)
    await put_group(stage, "a")
    await put_group(stage, "b")
    await stage.until_stored(BATCHES, 2)
