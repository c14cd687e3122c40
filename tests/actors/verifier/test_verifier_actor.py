"""The verifier on a real bus: it checks against the stored task, and what it can not check it never scores."""

from __future__ import annotations

from typing import Any

from actors.verifier.actor import Verifier
from messages import ChatMessage, DeadReason, Task, VerdictStatus, VerifierSpec
from messages.topics import DEAD, ROLLOUTS, TASKS, VERDICTS
from tests.actors.lives import Stage
from tests.actors.samples import rollout


async def put_task(stage: Stage, **changes: Any) -> int:
    fields: dict[str, Any] = {"verifier": VerifierSpec(kind="exact"), "answer": "r1"}
    task = Task(id="task-of-g", domain="d", messages=(ChatMessage(role="user", content="?"),), **{**fields, **changes})
    return await stage.put(TASKS, [task], "train", "d", "key")


async def test_each_sample_of_a_group_gets_its_verdict(stage: Stage) -> None:
    seq = await put_task(stage)
    await stage.start(Verifier)
    await stage.put(ROLLOUTS, [rollout("g", i, 3, task_seq=seq) for i in range(3)], "d")
    (parcel,) = await stage.stored(VERDICTS, 1)
    found = [(v.rollout.index, v.status, v.pass_rate) for v in parcel.records]  # type: ignore[attr-defined]
    assert found == [
        (0, VerdictStatus.FAILED, 0.0),
        (1, VerdictStatus.PASSED, 1.0),
        (2, VerdictStatus.FAILED, 0.0),
    ]
    await stage.until_stored(ROLLOUTS, 0)


async def test_a_task_whose_check_can_not_run_is_an_infrastructure_error_without_a_score(stage: Stage) -> None:
    seq = await put_task(stage, verifier=VerifierSpec(kind="no-such-verifier"))
    living = await stage.start(Verifier)
    await stage.put(ROLLOUTS, [rollout("g", i, task_seq=seq) for i in range(2)], "d")
    (parcel,) = await stage.stored(VERDICTS, 1)
    for verdict in parcel.records:
        assert (verdict.status, verdict.pass_rate) == (VerdictStatus.INFRASTRUCTURE_ERROR, None)  # type: ignore[attr-defined]
        assert "no-such-verifier" in verdict.log  # type: ignore[attr-defined]
    assert living.actor.counters["infrastructure_errors"] == 2


async def test_rollouts_of_a_task_that_was_replaced_are_a_dead_letter_that_names_it(stage: Stage) -> None:
    seq = await put_task(stage)
    await stage.start(Verifier)
    await stage.put(ROLLOUTS, [rollout("h", i, task_seq=seq) for i in range(2)], "d")
    letter = (await stage.parcels(DEAD, 1))[0].record
    assert (letter.reason, letter.group_id) == (DeadReason.REJECTED, "h")
    assert "task task-of-h is not at" in letter.error
