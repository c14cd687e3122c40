"""The reward on a real bus: a group goes on whole, or ends whole with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from actors.reward.actor import Reward
from messages import DeadReason, DropReason, Experience, OutcomeStatus
from messages.topics import DEAD, EXPERIENCES, OUTCOMES, VERDICTS
from tests.actors.lives import Stage, run_config
from tests.actors.samples import verdicts


async def experiences_of(stage: Stage, *groups: list[Any]) -> list[list[Experience]]:
    await stage.start(Reward)
    for group in groups:
        await stage.put(VERDICTS, group, "d")
    return [received.records for received in await stage.stored(EXPERIENCES, len(groups))]  # type: ignore[misc]


async def test_a_group_becomes_experiences_with_its_advantages(stage: Stage) -> None:
    (group,) = await experiences_of(stage, verdicts("g", [1.0, 0.0, 0.0, 0.0]))
    assert [experience.reward for experience in group] == [1, 0, 0, 0]
    assert [experience.advantage for experience in group] == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-3)
    assert [experience.rollout.index for experience in group] == [0, 1, 2, 3]


async def test_objectives_are_weighted_into_one_reward(stage: Stage) -> None:
    stage.config = run_config(stage.folder, more="[reward]\nobjectives = { correct = 1.0, format = 0.5 }")
    scores = [{"correct": 1.0, "format": 1.0}, {"correct": 0.0, "format": 1.0}]
    (group,) = await experiences_of(stage, verdicts("g", [1.0, 0.0], scores))
    assert [experience.reward for experience in group] == [1.5, 0.5]
    assert group[0].rewards == {"correct": 1.0, "format": 1.0}


@pytest.mark.parametrize(
    ("rates", "reason", "mean"),
    [
        ([1.0, 1.0], DropReason.NO_SIGNAL, 1.0),
        ([0.0, 0.0], DropReason.NO_SIGNAL, 0.0),
        ([1.0, None], DropReason.INFRASTRUCTURE_ERROR, None),
        ([None, None], DropReason.INFRASTRUCTURE_ERROR, None),
    ],
)
async def test_a_group_without_signal_or_with_a_failed_check_is_dropped_with_the_reason(
    stage: Stage, rates: list[float | None], reason: DropReason, mean: float | None
) -> None:
    living = await stage.start(Reward)
    await stage.put(VERDICTS, verdicts("g", rates), "d")
    outcome = (await stage.parcels(OUTCOMES, 1))[0].record
    assert (outcome.group_id, outcome.status, outcome.reason) == ("g", OutcomeStatus.DROPPED, reason)
    assert (outcome.reward_mean, outcome.n_samples) == (mean, 2)
    await stage.until_stored(VERDICTS, 0)
    await stage.until_stored(EXPERIENCES, 0)
    assert living.actor.counters[f"dropped_{reason.value}"] == 2


async def test_a_group_without_a_token_to_train_is_dropped_as_empty(stage: Stage) -> None:
    await stage.start(Reward)
    await stage.put(VERDICTS, verdicts("g", [1.0, 0.0], loss_mask=[0, 0, 0]), "d")
    assert (await stage.parcels(OUTCOMES, 1))[0].record.reason is DropReason.EMPTY


async def test_a_group_that_is_delivered_again_is_told_and_passed_on_once(stage: Stage) -> None:
    living = await stage.start(Reward)
    for _ in range(2):
        await stage.put(VERDICTS, verdicts("good", [1.0, 0.0]), "d", msg_id=None)
        await stage.put(VERDICTS, verdicts("same", [1.0, 1.0]), "d", msg_id=None)
    await stage.until_stored(VERDICTS, 0)
    assert (await stage.bus.stream_state(OUTCOMES)).messages == 1
    assert living.actor.counters["duplicates"] == 1
    # experiences of a group that was verified twice come twice; the replay buffer knows the group


@pytest.mark.parametrize("part", ["half of it", "two groups"])
async def test_a_parcel_that_is_not_one_whole_group_is_refused(stage: Stage, part: str) -> None:
    await stage.start(Reward)
    mixed = [verdicts("g", [1.0, 0.0])[0], verdicts("h", [1.0, 0.0])[1]]
    await stage.put(VERDICTS, verdicts("g", [1.0, 0.0])[:1] if part == "half of it" else mixed, "d")
    letter = (await stage.parcels(DEAD, 1))[0].record
    assert letter.reason is DeadReason.REJECTED
    assert "is not the whole group g of 2" in letter.error
    assert letter.group_id == ("g" if part == "half of it" else "g,h")


async def test_a_verdict_without_the_score_of_an_objective_is_a_dead_letter_that_names_it(stage: Stage) -> None:
    stage.config = run_config(stage.folder, more="[reward]\nobjectives = { style = 1.0 }")
    await stage.start(Reward)
    await stage.put(VERDICTS, verdicts("g", [1.0, 0.0], [{"correct": 1.0}, {"correct": 0.0}]), "d")
    letter = (await stage.parcels(DEAD, 1))[0].record
    assert (letter.reason, letter.group_id) == (DeadReason.REJECTED, "g")
    assert "no score for objective 'style'" in letter.error
