"""The learner on a real bus: what it announces, when a batch is done with, and what a crash at any point leaves."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.learner import actor as learner_actor
from actors.learner.actor import Learner
from messages import (
    Batch,
    DeadReason,
    DropReason,
    Experience,
    Outcome,
    OutcomeStatus,
    Step,
    Topic,
    WeightManifest,
)
from messages.topics import ALERTS, BATCHES, DEAD, OUTCOMES, STEPS, WEIGHTS
from runtime import weights
from tests.actors.learner.conftest import write_small_policy
from tests.actors.lives import Stage, run_config, staged, until
from tests.actors.samples import batch, experiences
from tests.conftest import LiveBus

SELDOM = "[learner]\nwarmup_steps = 0\ncheckpoint = { every_steps = 3 }"
ALWAYS = "[learner]\nwarmup_steps = 0\ncheckpoint = { every_steps = 1 }"


@pytest.fixture
async def stage(live: LiveBus, tmp_path: Path) -> AsyncIterator[Stage]:
    """A small policy that really trains, saved at every third step."""
    write_small_policy(tmp_path / "policy", seed=3)
    async with staged(live, tmp_path, run_config(tmp_path, more=SELDOM)) as made:
        yield made


async def put(stage: Stage, number: int, *groups: list[Experience], msg_id: str | None = None) -> Batch:
    made = batch(number, groups)
    await stage.put(BATCHES, [made], str(number), msg_id=msg_id or made.id)
    return made


async def steps(stage: Stage, n: int) -> list[Step]:
    return [received.record for received in await stage.parcels(STEPS, n)]


async def outcomes(stage: Stage, n: int) -> list[Outcome]:
    return [received.record for received in await stage.parcels(OUTCOMES, n)]


async def manifests(stage: Stage, n: int) -> list[WeightManifest]:
    return [received.record for received in await stage.parcels(WEIGHTS, n)]


async def n_stored(stage: Stage, topic: Any) -> int:
    return (await stage.bus.stream_state(topic)).messages


async def test_it_announces_its_weights_before_anything_else(stage: Stage) -> None:
    await put(stage, 1, experiences("a"), experiences("b"))
    await stage.start(Learner)
    first, second = await manifests(stage, 2)
    assert [(m.epoch, m.version) for m in (first, second)] == [(1, 0), (1, 1)]
    payload, source = await weights.fetch(stage.bus, second)
    assert (len(payload), source) == (second.size_bytes, "file")


async def test_a_batch_becomes_a_step_a_version_and_with_the_checkpoint_its_groups_outcomes(stage: Stage) -> None:
    stage.config = run_config(stage.folder, more=ALWAYS)
    await put(stage, 1, experiences("a"), experiences("b", versions=(0, 0)))
    await stage.start(Learner)
    (step,) = await steps(stage, 1)
    assert (step.epoch, step.version, step.stepped, step.batch_number) == (1, 1, True, 1)
    assert (step.group_ids, step.refused_ids) == (("a", "b"), ())
    assert (step.n_samples, step.n_tokens, step.lag_max) == (4, 10, 0)
    assert step.domains["d"].n_tokens == 10
    told = await outcomes(stage, 2)
    assert [(o.group_id, o.status, o.version, o.lag, o.n_tokens) for o in told] == [
        ("a", OutcomeStatus.TRAINED, 1, 0, 6),
        ("b", OutcomeStatus.TRAINED, 1, 0, 4),
    ]
    await stage.until_stored(BATCHES, 0)


async def test_a_batch_stays_on_the_bus_until_a_checkpoint_holds_what_it_taught(stage: Stage) -> None:
    await stage.start(Learner)
    await put(stage, 1, experiences("a"))
    await put(stage, 2, experiences("b"))
    await steps(stage, 2)
    assert (await n_stored(stage, BATCHES), await n_stored(stage, OUTCOMES)) == (2, 0)
    await put(stage, 3, experiences("c"))
    assert {outcome.group_id for outcome in await outcomes(stage, 3)} == {"a", "b", "c"}
    await stage.until_stored(BATCHES, 0)


async def test_what_no_checkpoint_holds_is_trained_again_after_a_crash_under_a_new_epoch(stage: Stage) -> None:
    first = await stage.start(Learner)
    await put(stage, 1, experiences("a"))
    await manifests(stage, 2)  # its version is told after its step
    await first.crash()
    again = await stage.start(Learner)
    assert [(m.epoch, m.version) for m in await manifests(stage, 4)] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [(s.epoch, s.version, s.stepped, s.group_ids) for s in await steps(stage, 2)] == [
        (1, 1, True, ("a",)),
        (2, 1, True, ("a",)),
    ]
    await again.drain()
    assert [outcome.status for outcome in await outcomes(stage, 1)] == [OutcomeStatus.TRAINED]


@pytest.mark.parametrize("run", ["", "max_steps = 1"])
async def test_a_crash_right_after_the_checkpoint_trains_nothing_twice_and_still_tells_the_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    stage.config = run_config(stage.folder, run=run, more=ALWAYS)
    save, saved = Learner._checkpoint, asyncio.Event()

    async def save_and_hang(self: Learner) -> None:
        await save(self)
        self._saved.clear()
        saved.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "_checkpoint", save_and_hang)
        first = await stage.start(Learner)
        await put(stage, 1, experiences("a"), experiences("b"))
        await saved.wait()
        await first.crash()
    await stage.start(Learner)
    assert [(o.group_id, o.status) for o in await outcomes(stage, 2)] == [
        ("a", OutcomeStatus.TRAINED),
        ("b", OutcomeStatus.TRAINED),
    ]
    _, again = await steps(stage, 2)
    assert (again.epoch, again.version, again.stepped, again.reason) == (2, 1, False, "no group left to train")
    assert [(m.epoch, m.version) for m in await manifests(stage, 3)] == [(1, 0), (1, 1), (2, 1)]
    await stage.until_stored(BATCHES, 0)


async def test_drained_it_saves_tells_and_leaves_nothing_to_do_again(stage: Stage) -> None:
    first = await stage.start(Learner)
    await put(stage, 1, experiences("a"))
    await steps(stage, 1)
    await first.drain()
    await stage.until_stored(BATCHES, 0)
    again = await stage.start(Learner)
    assert (again.actor.epoch, again.actor.version) == (2, 1)
    assert "a" in again.actor.consumed


async def test_a_group_that_comes_in_a_second_batch_is_not_trained_again(stage: Stage) -> None:
    living = await stage.start(Learner)
    await put(stage, 1, experiences("a"))
    await put(stage, 2, experiences("a"), experiences("b"))
    first, second = await steps(stage, 2)
    assert (first.group_ids, second.group_ids) == (("a",), ("b",))
    assert living.actor.counters["duplicates"] == 1
    await living.drain()
    assert (await stage.bus.stream_state(OUTCOMES)).messages == 2


async def test_a_batch_of_nothing_but_an_unsaved_group_waits_for_the_checkpoint_too(stage: Stage) -> None:
    """If it were acknowledged earlier, a crash could undo the step and nobody would bring the group again."""
    await stage.start(Learner)
    await put(stage, 1, experiences("a"))
    await put(stage, 2, experiences("a"))
    await steps(stage, 2)
    assert (await n_stored(stage, BATCHES), await n_stored(stage, OUTCOMES)) == (2, 0)


async def test_what_is_too_old_is_refused_at_once_however_far_the_next_checkpoint_is(stage: Stage) -> None:
    stage.config = run_config(stage.folder, training="max_lag = 0", more=SELDOM)
    await stage.start(Learner)
    await put(stage, 1, experiences("a"))
    await put(stage, 2, experiences("old"))
    (outcome,) = await outcomes(stage, 1)
    assert (outcome.group_id, outcome.status, outcome.reason) == ("old", OutcomeStatus.DROPPED, DropReason.STALE)
    _, second = await steps(stage, 2)
    assert (second.stepped, second.version, second.refused_ids) == (False, 1, ("old",))
    await stage.until_stored(BATCHES, 1)  # only the one that waits for its checkpoint


async def test_a_batch_trains_its_fresh_groups_and_says_which_it_refused(stage: Stage) -> None:
    stage.config = run_config(stage.folder, training="max_lag = 0", more=SELDOM)
    await stage.start(Learner)
    await put(stage, 1, experiences("a"))
    await put(stage, 2, experiences("old"), experiences("new", versions=(1, 1)))
    _, second = await steps(stage, 2)
    assert (second.group_ids, second.refused_ids, second.lag_max) == (("new",), ("old",), 0)


async def test_no_token_is_trained_that_is_older_than_the_bound_by_its_oldest_token(stage: Stage) -> None:
    stage.config = run_config(stage.folder, training="max_lag = 1", more=ALWAYS)
    await stage.start(Learner)
    for number in (1, 2):
        await put(stage, number, experiences(f"g{number}", versions=(number - 1,)))
    await put(stage, 3, experiences("mixed", versions=(2, 2, 0)), experiences("ok", versions=(2, 1)))
    third = (await steps(stage, 3))[2]
    assert (third.group_ids, third.lag_max) == (("ok",), 1)


async def test_what_undone_weights_sampled_is_dropped_as_orphaned(stage: Stage) -> None:
    first = await stage.start(Learner)
    await put(stage, 1, experiences("a"))
    await steps(stage, 1)
    await first.crash()
    await stage.start(Learner)
    await put(stage, 2, experiences("child", versions=(0, 1), epoch=1))
    (outcome,) = await outcomes(stage, 1)
    assert (outcome.group_id, outcome.reason) == ("child", DropReason.ORPHANED)


@pytest.mark.parametrize("what", ["NaN", "too large"])
async def test_a_log_prob_that_is_none_is_a_dead_letter_and_training_goes_on(stage: Stage, what: str) -> None:
    await stage.start(Learner)
    bad = experiences("bad")
    value = np.nan if what == "NaN" else 0.5
    sick = bad[0].rollout.model_copy(update={"logprobs": np.array([-1, value, -1], np.float32)})  # nobody checks it
    await put(stage, 1, [bad[0].model_copy(update={"rollout": sick}), bad[1]])
    letter = (await stage.parcels(DEAD, 1))[0].record
    assert letter.reason is (DeadReason.INVALID if what == "NaN" else DeadReason.REJECTED)
    assert letter.group_id == "bad"
    assert "log" in letter.error
    await put(stage, 2, experiences("good"))
    assert (await steps(stage, 1))[0].group_ids == ("good",)


async def test_a_batch_with_nothing_to_learn_takes_no_step_and_makes_no_version(stage: Stage) -> None:
    living = await stage.start(Learner)
    flat = [experience.model_copy(update={"advantage": 0.0}) for experience in experiences("flat")]
    await put(stage, 1, flat)
    (outcome,) = await outcomes(stage, 1)
    assert outcome.reason is DropReason.NO_SIGNAL
    (step,) = await steps(stage, 1)
    assert (step.stepped, step.version, step.reason) == (False, 0, "no_signal")
    assert living.actor.version == 0
    assert await n_stored(stage, WEIGHTS) == 1


async def test_an_unsaved_version_does_not_hold_back_the_end_of_a_batch_without_a_step(stage: Stage) -> None:
    await stage.start(Learner)
    await put(stage, 1, experiences("a"))
    await put(stage, 2, [e.model_copy(update={"advantage": 0.0}) for e in experiences("flat", versions=(1,))])
    assert (await outcomes(stage, 1))[0].group_id == "flat"


async def test_after_the_last_step_what_comes_stays_on_the_bus(stage: Stage) -> None:
    stage.config = run_config(stage.folder, run="max_steps = 1", more=SELDOM)
    living = await stage.start(Learner)
    await put(stage, 1, experiences("a"))
    await put(stage, 2, experiences("b"))
    assert (await outcomes(stage, 1))[0].group_id == "a"  # the last step is saved at once
    await living.drain()
    await stage.until_stored(BATCHES, 1)
    assert len(await stage.bus.read(STEPS)) == 1


async def test_a_checkpoint_that_can_not_be_written_is_an_alert_and_nothing_is_acknowledged(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.config = run_config(stage.folder, more=ALWAYS)
    living = await stage.start(Learner)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(living.actor.store, "save", full)
    await put(stage, 1, experiences("a"))
    alert = (await stage.parcels(ALERTS, 1))[0].record
    assert (alert.name, alert.severity) == ("checkpoint-failed", "critical")
    assert (await n_stored(stage, BATCHES), await n_stored(stage, OUTCOMES)) == (1, 0)
    monkeypatch.undo()
    await put(stage, 2, experiences("b", versions=(1,)))
    await until(lambda: living.actor.counters["checkpoints"] == 1)
    await outcomes(stage, 2)


async def test_a_checkpoint_that_failed_is_tried_again_also_when_no_batch_comes_any_more(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_actor, "AGAIN_S", 0.05)
    stage.config = run_config(stage.folder, more=ALWAYS)
    (stage.folder / "checkpoints").write_text("where the folder should be")
    living = await stage.start(Learner)
    for number in range(1, living.actor.concurrency(BATCHES) + 1):
        await put(stage, number, experiences(f"g{number}", versions=(number - 1,)))
    await steps(stage, living.actor.concurrency(BATCHES))
    assert await n_stored(stage, OUTCOMES) == 0
    (stage.folder / "checkpoints").unlink()
    await stage.until_stored(BATCHES, 0)
    assert len(await stage.bus.read(ALERTS)) == 1


async def test_weights_that_find_no_room_hold_training_up_and_cost_no_batch(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_actor, "AGAIN_S", 0.05)
    stage.config = run_config(stage.folder, more=ALWAYS)
    living = await stage.start(Learner)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(living.actor.writer, "write", full)
        await put(stage, 1, experiences("a"))
        alert = (await stage.parcels(ALERTS, 1))[0].record
        assert (alert.name, alert.severity) == ("weights-not-written", "critical")
    assert (await outcomes(stage, 1))[0].status is OutcomeStatus.TRAINED
    assert [m.version for m in await manifests(stage, 2)] == [0, 1]
    assert await n_stored(stage, DEAD) == 0


async def test_weights_whose_file_has_disappeared_are_made_again_for_who_asks(stage: Stage) -> None:
    await stage.start(Learner)
    (manifest,) = await manifests(stage, 1)
    shutil.rmtree(Path(manifest.sources[0].location).parent)
    payload, source = await weights.fetch(stage.bus, manifest)
    assert (len(payload), source) == (manifest.size_bytes, "jetstream")


@pytest.mark.parametrize("topic", [WEIGHTS, STEPS])
async def test_a_learner_ends_when_a_later_epoch_has_begun_and_its_next_life_outbids_it(
    stage: Stage, topic: Topic
) -> None:
    first = await stage.start(Learner)
    if topic is WEIGHTS:
        await stage.announce(100, 0)
    else:
        step = Step(epoch=100, version=0, batch_id="b", batch_number=1, stepped=False, finished_s=1.0)
        await stage.put(STEPS, [step], "100")
    with pytest.raises(RuntimeError, match="epoch 100 has begun: epoch 1 is over"):
        await first.task
    again = await stage.start(Learner)
    assert again.actor.epoch == 101
