"""The curriculum on a real bus: it dispatches what the lag bound allows, and its ledger survives everything."""

from __future__ import annotations

import json
from typing import Any

from actors.curriculum.actor import Curriculum
from actors.curriculum.ledger import Ledger
from messages import (
    ChatMessage,
    DeadLetter,
    DeadReason,
    DropReason,
    Outcome,
    OutcomeStatus,
    Snapshot,
    Step,
    Task,
    Turn,
    VerifierSpec,
    derive,
)
from messages.topics import DEAD, OUTCOMES, SNAPSHOTS, STEPS, TASKS, TURNS
from tests.actors.lives import Living, Stage, run_config, until


async def publish_tasks(stage: Stage, n: int, start: int = 0, domain: str = "d") -> None:
    for i in range(start, start + n):
        task = Task(
            id=f"{domain}{i}",
            domain=domain,
            messages=(ChatMessage(role="user", content=f"say {i}"),),
            verifier=VerifierSpec(kind="exact"),
            answer=str(i),
            level=3,
        )
        await stage.put(TASKS, [task], "train", domain, derive(task.id))


def turns_of(parcels: list[Any]) -> list[Turn]:
    return [received.record for received in parcels]


async def step(stage: Stage, version: int, groups: list[str] = (), *, epoch: int = 1, **changes: Any) -> None:  # type: ignore[assignment]
    record = Step(
        epoch=epoch, version=version, batch_id=f"b{version}", batch_number=version, stepped=True,
        group_ids=tuple(groups), finished_s=1.0, **changes,
    )  # fmt: skip
    await stage.put(STEPS, [record], str(epoch))


async def tell(stage: Stage, group: str, status: OutcomeStatus, reason: DropReason | None = None) -> None:
    outcome = Outcome(
        group_id=group, task_id="t", domain="d", status=status, reason=reason, n_samples=2, actor="learner"
    )
    await stage.put(OUTCOMES, [outcome], status.value, "d")


async def bury(stage: Stage, groups: str, reason: DeadReason = DeadReason.BUG) -> None:
    letter = DeadLetter(
        id=f"dead-{groups}", topic="turns", subject="s", stream_seq=1, actor="generator-0", reason=reason,
        error="e", deliveries=1, group_id=groups, died_s=1.0,
    )  # fmt: skip
    await stage.bus.publish(DEAD, [letter], "turns")


async def dispatching(stage: Stage, turns: int = 6) -> tuple[Living[Curriculum], list[Turn]]:
    """A curriculum that has dispatched all that it may at version 0: (2 + 0 + 1) * 2 groups."""
    await publish_tasks(stage, 4)
    await stage.announce(1, 0)
    living = await stage.start(Curriculum)
    return living, turns_of(await stage.stored(TURNS, turns))


async def test_before_any_weights_are_announced_nothing_is_dispatched(stage: Stage) -> None:
    await publish_tasks(stage, 4)
    living = await stage.start(Curriculum)
    await until(lambda: living.actor.sampler.n_tasks == 4)
    assert living.actor.room() == 0
    await stage.announce(1, 0)
    await stage.until_stored(TURNS, 6)


async def test_it_dispatches_exactly_what_admission_allows(stage: Stage) -> None:
    living, turns = await dispatching(stage)
    assert living.actor.room() == 0
    assert len({turn.group_id for turn in turns}) == 6
    assert {(turn.n, turn.level, turn.admitted_epoch, turn.admitted_version) for turn in turns} == {(2, 3, 1, 0)}
    assert living.actor.ledger.figures()["dispatched"] == 12


async def test_a_step_makes_room_for_as_many_groups_as_it_took(stage: Stage) -> None:
    living, turns = await dispatching(stage)
    await step(stage, 1, [turn.group_id for turn in turns[:2]])
    after = turns_of(await stage.stored(TURNS, 8))
    assert [turn.admitted_version for turn in after] == [0] * 6 + [1] * 2
    assert living.actor.room() == 0


async def test_groups_that_a_step_refused_make_room_before_their_outcome_is_told(stage: Stage) -> None:
    _, turns = await dispatching(stage)
    await step(stage, 1, [turns[0].group_id], refused_ids=(turns[1].group_id, turns[2].group_id))
    await stage.until_stored(TURNS, 9)


async def test_a_dropped_group_gives_its_place_back(stage: Stage) -> None:
    _, turns = await dispatching(stage)
    await tell(stage, turns[0].group_id, OutcomeStatus.DROPPED, DropReason.NO_SIGNAL)
    await stage.until_stored(TURNS, 7)


async def test_new_tasks_wake_a_curriculum_that_had_none(stage: Stage) -> None:
    await stage.announce(1, 0)
    await stage.start(Curriculum)
    await publish_tasks(stage, 1)
    await stage.until_stored(TURNS, 6)


async def test_the_ledger_follows_outcomes_dead_letters_and_replays(stage: Stage) -> None:
    living, turns = await dispatching(stage)
    trained, dropped, dead, replayed = (turn.group_id for turn in turns[:4])
    await tell(stage, trained, OutcomeStatus.TRAINED)
    await tell(stage, dropped, OutcomeStatus.DROPPED, DropReason.STALE)
    await bury(stage, f"{dead},{replayed}")
    ledger = living.actor.ledger
    await until(lambda: len(ledger.dead) == 2 and ledger.trained == 2)
    await tell(stage, replayed, OutcomeStatus.REPLAYED)
    await until(lambda: len(ledger.dead) == 1)
    figures = ledger.figures()
    assert (figures["trained"], figures["dropped_stale"], figures["dead"]) == (2, 2, 2)
    assert replayed in ledger.open
    assert ledger.law_closes()


async def test_a_task_that_no_generator_can_sample_is_not_drawn_again_until_it_is_replayed(stage: Stage) -> None:
    living, turns = await dispatching(stage)
    refused = turns[0]
    sampler = living.actor.sampler
    await bury(stage, refused.group_id, DeadReason.REJECTED)
    await until(lambda: refused.group_id in living.actor.ledger.dead)
    later = {sampler.draw() for _ in range(12)}
    assert len(later) == 3
    assert ("d", refused.task_seq) not in later
    await tell(stage, refused.group_id, OutcomeStatus.REPLAYED)
    await until(lambda: refused.group_id in living.actor.ledger.open)
    assert ("d", refused.task_seq) in {sampler.draw() for _ in range(12)}


async def test_what_happened_while_it_was_down_is_taken_up_in_the_order_in_which_it_happened(stage: Stage) -> None:
    living, turns = await dispatching(stage)
    await living.crash()
    group = turns[0].group_id
    await bury(stage, group)
    await tell(stage, group, OutcomeStatus.REPLAYED)
    await tell(stage, group, OutcomeStatus.TRAINED)
    again = await stage.start(Curriculum)
    figures = again.actor.ledger.figures()
    assert (figures["trained"], figures["dead"]) == (2, 0)


async def test_after_a_crash_the_turns_that_were_meant_to_be_published_are_published_once(stage: Stage) -> None:
    await publish_tasks(stage, 4)
    await stage.announce(1, 0)
    ledger = Ledger(prefix="p")
    for _ in range(6):
        ledger.dispatch(task_seq=2, domain="d", n=2, epoch=1, version=0)
    state = {"ledger": ledger.to_json(), "sampler": {}, "epoch": 1, "version": 0}
    state["seen"] = {topic.name: 0 for topic in (STEPS, OUTCOMES, DEAD)}
    snapshot = Snapshot(kind="curriculum", saved_s=1.0, state=json.dumps(state))
    await stage.bus.publish(SNAPSHOTS, [snapshot], "curriculum")
    for _ in range(2):
        living = await stage.start(Curriculum)
        found = turns_of(await stage.stored(TURNS, 6))
        assert {turn.group_id for turn in found} == {f"p-{i}" for i in range(1, 7)}
        await living.crash()


async def test_a_restart_dispatches_nothing_twice_and_goes_on_counting(stage: Stage) -> None:
    living, turns = await dispatching(stage)
    await tell(stage, turns[0].group_id, OutcomeStatus.TRAINED)
    await stage.until_stored(TURNS, 7)
    await living.crash()
    again = await stage.start(Curriculum)
    found = turns_of(await stage.stored(TURNS, 7))
    assert len({turn.group_id for turn in found}) == 7
    figures = again.actor.ledger.figures()
    assert (figures["dispatched"], figures["trained"], figures["open"]) == (14, 2, 12)


async def test_a_drained_curriculum_has_saved_where_it_stands(stage: Stage) -> None:
    living, turns = await dispatching(stage)
    await tell(stage, turns[0].group_id, OutcomeStatus.TRAINED)
    await until(lambda: living.actor.ledger.trained == 2)
    await living.drain()
    saved = await stage.bus.last(SNAPSHOTS, "curriculum")
    assert saved is not None
    assert Ledger.from_json(json.loads(saved.record.state)["ledger"]) == living.actor.ledger


async def test_a_learner_that_came_back_puts_its_undone_groups_into_the_pipeline_again(stage: Stage) -> None:
    living, turns = await dispatching(stage)
    await step(stage, 1, [turn.group_id for turn in turns[:2]])
    await stage.until_stored(TURNS, 8)
    await stage.announce(2, 0)
    await until(lambda: living.actor.epoch == 2)
    assert living.actor.version == 0
    assert living.actor.ledger.pipeline == 8
    assert living.actor.room() == 0


async def test_steps_of_a_learner_that_was_fenced_off_change_nothing(stage: Stage) -> None:
    living, turns = await dispatching(stage)
    await stage.announce(2, 0)
    await until(lambda: living.actor.epoch == 2)
    await step(stage, 7, [turns[0].group_id], epoch=1)
    await tell(stage, turns[1].group_id, OutcomeStatus.TRAINED)
    await until(lambda: living.actor.ledger.trained == 2 and living.actor._seen["steps"] == 1)
    assert living.actor.version == 0
    assert not living.actor.ledger.in_training


async def test_it_dispatches_no_more_than_the_last_steps_need(stage: Stage) -> None:
    stage.config = run_config(stage.folder, run="max_steps = 2")
    living, turns = await dispatching(stage, 4)
    assert living.actor.room() == 0
    await step(stage, 1, [turn.group_id for turn in turns[:2]])
    await tell(stage, turns[2].group_id, OutcomeStatus.DROPPED, DropReason.NO_SIGNAL)
    await stage.until_stored(TURNS, 5)  # one more for the one that gave no signal
    await step(stage, 2, [turns[3].group_id])
    await until(lambda: living.actor.version == 2)
    assert living.actor.room() == 0


async def test_tasks_of_a_domain_that_the_run_does_not_have_are_left_alone(stage: Stage) -> None:
    await publish_tasks(stage, 2, domain="stranger")
    await stage.announce(1, 0)
    living = await stage.start(Curriculum)
    await publish_tasks(stage, 1)
    found = turns_of(await stage.stored(TURNS, 6))
    assert {turn.domain for turn in found} == {"d"}
    assert living.actor.sampler.n_tasks == 1
