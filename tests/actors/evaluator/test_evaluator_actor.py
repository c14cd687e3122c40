"""The evaluator on a real bus: which versions it scores, how often, and that the same policy gets the same score."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from actors.evaluator.actor import Evaluator
from actors.evaluator.scoring import Score, Scorer
from actors.policy.engine import TorchEngine
from actors.policy.engine_thread import EngineThread
from actors.policy.weight_bytes import to_chunks
from actors.verifiers.pool import VerifierPool
from messages import ChatMessage, Evaluation, Task, VerifierSpec, derive
from messages.topics import EVALUATIONS, TASKS, WEIGHTS
from runtime.weights import WeightWriter
from tests.actors.learner.conftest import small_policy, write_small_policy
from tests.actors.lives import Stage, run_config, staged, until
from tests.conftest import LiveBus

FEW = """[evaluator]
every_versions = 2
tasks_per_domain = 3
full_tasks_per_domain = 5
samples_per_task = 4
quick_samples_per_task = 2
"""


@pytest.fixture
async def stage(live: LiveBus, tmp_path: Path) -> AsyncIterator[Stage]:
    """Six held-out tasks, a few scored while training, five at the first and the last version."""
    write_small_policy(tmp_path / "policy", seed=0)
    async with staged(live, tmp_path, run_config(tmp_path, run="max_steps = 5", more=FEW)) as made:
        for task in tasks(6):
            await made.put(TASKS, [task], "eval", "d", derive(task.id))
        yield made


def tasks(n: int, content: str = "say ") -> list[Task]:
    return [
        Task(
            id=f"e{i}", domain="d", messages=(ChatMessage(role="user", content=f"{content}{i}"),), split="eval",
            verifier=VerifierSpec(kind="regex", options={"pattern": "^[a-z]", "full": False}),
        )
        for i in range(n)
    ]  # fmt: skip


async def serve(stage: Stage, version: int, epoch: int = 1) -> None:
    writer = WeightWriter(stage.folder / "weights", keep=100)
    manifest = writer.write(to_chunks(small_policy(seed=version).named_tensors()), epoch, version)
    await stage.bus.publish(WEIGHTS, [manifest], str(epoch))


async def evaluations(stage: Stage, n: int) -> list[Evaluation]:
    return [received.record for received in await stage.parcels(EVALUATIONS, n)]


async def test_the_first_the_last_and_every_second_version_are_scored(stage: Stage) -> None:
    living = await stage.start(Evaluator)
    for version in range(6):
        await serve(stage, version)
        if living.actor.wants(version):
            await until(lambda version=version: living.actor.counters["evaluations"] > version // 2)  # type: ignore[misc]
    found = await evaluations(stage, 4)
    assert [(e.version, e.full, e.n_tasks, e.samples_per_task) for e in found] == [
        (0, True, 5, 4),
        (2, False, 3, 2),
        (4, False, 3, 2),
        (5, True, 5, 4),
    ]
    assert all(e.domain == "d" and e.n_errors == 0 and 0 <= (e.sampled_accuracy or 0) <= 1 for e in found)


async def test_after_a_restart_what_was_scored_is_not_scored_again(stage: Stage) -> None:
    await serve(stage, 0)
    first = await stage.start(Evaluator)
    await evaluations(stage, 1)
    await first.drain()
    again = await stage.start(Evaluator)
    await serve(stage, 5)
    assert [e.version for e in await evaluations(stage, 2)] == [0, 5]
    await until(lambda: again.actor.counters["evaluations"] == 1)


async def test_one_that_comes_late_scores_the_first_version_and_the_newest_not_all_between(stage: Stage) -> None:
    for version in (0, 2, 4, 5):
        await serve(stage, version)
    await stage.start(Evaluator)
    assert [e.version for e in await evaluations(stage, 2)] == [0, 5]


async def scored(some: list[Task]) -> Score:
    torch.set_num_threads(1)
    policy = small_policy(seed=1)
    engine = EngineThread(TorchEngine(policy.model, max_sequences=16))
    pool = VerifierPool(1, 10.0)
    await pool.start()
    try:
        score = await Scorer(policy, engine, pool, max_tokens=3, seed=5).score(some, 8)
        again = await Scorer(policy, engine, pool, max_tokens=3, seed=5).score(some, 8)
    finally:
        await pool.close()
        await engine.close()
    assert (again.sampled_accuracy, again.greedy_accuracy) == (score.sampled_accuracy, score.greedy_accuracy)
    return score


async def test_the_same_policy_tasks_and_seed_give_the_same_score() -> None:
    score = await scored(tasks(6))
    assert (score.n_tasks, score.n_errors, score.samples_per_task) == (6, 0, 8)
    assert score.sampled_accuracy is not None


async def test_a_task_that_the_policy_can_not_read_is_an_error_and_not_a_wrong_answer() -> None:
    good = await scored(tasks(3))
    mixed = await scored([*tasks(3), *tasks(2, "\u00e9")])
    assert (mixed.n_tasks, mixed.n_errors) == (5, 2 * 9)
    assert mixed.sampled_accuracy == good.sampled_accuracy


async def test_without_a_task_that_could_be_scored_there_is_no_score() -> None:
    score = await scored(tasks(2, "\u00e9"))
    assert (score.sampled_accuracy, score.greedy_accuracy) == (None, None)
