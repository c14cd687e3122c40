"""The generator on a real bus: which weights it serves, which turns it takes, and what it does with bad ones."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors.generator.actor import Generator
from actors.policy.weight_bytes import to_chunks
from messages import ChatMessage, DeadReason, Rollout, Sampling, Turn, WeightManifest, derive
from messages.topics import ALERTS, DEAD, ROLLOUTS, TURNS, WEIGHTS
from runtime.errors import UserError
from runtime.weights import WeightWriter
from tests.actors.learner.conftest import small_policy, write_small_policy
from tests.actors.lives import Stage, run_config, staged, until
from tests.conftest import LiveBus


@pytest.fixture
async def stage(live: LiveBus, tmp_path: Path) -> AsyncIterator[Stage]:
    """A small policy with a context of 96 tokens; max_lag 2."""
    write_small_policy(tmp_path / "policy", seed=3)
    async with staged(live, tmp_path, run_config(tmp_path, more="[generator]\nmax_sequences = 4")) as made:
        yield made


async def serve(stage: Stage, epoch: int, version: int, **changes: Any) -> WeightManifest:
    """Announce real weights in a file (there is no learner to ask for them); ``changes`` forge the manifest."""
    writer = WeightWriter(stage.folder / "weights", keep=100)
    manifest = writer.write(to_chunks(small_policy(seed=version).named_tensors()), epoch, version)
    manifest = manifest.model_copy(update={"sources": manifest.sources[:1], **changes})
    msg_id = derive("weights", epoch, version, *map(str, changes))
    await stage.bus.publish(WEIGHTS, [manifest], str(epoch), msg_id=msg_id)
    return manifest


async def ask(stage: Stage, group: str, content: str = "say 1", epoch: int = 1, version: int = 0) -> None:
    turn = Turn(
        id=f"{group}.0", group_id=group, task_id=f"task-of-{group}", task_seq=1, domain="d",
        messages=(ChatMessage(role="user", content=content),), n=2, sampling=Sampling(max_tokens=4),
        admitted_epoch=epoch, admitted_version=version,
    )  # fmt: skip
    await stage.put(TURNS, [turn], "d")


async def rollouts(stage: Stage, n: int) -> list[list[Rollout]]:
    return [received.records for received in await stage.stored(ROLLOUTS, n)]  # type: ignore[misc]


async def refused(stage: Stage, n: int) -> list[str]:
    return [received.record.summary for received in await stage.parcels(ALERTS, n)]


async def test_a_turn_becomes_its_whole_group_sampled_by_the_announced_weights(stage: Stage) -> None:
    await serve(stage, 1, 3)
    await stage.start(Generator)
    await ask(stage, "g")
    (group,) = await rollouts(stage, 1)
    assert [(r.id, r.index, r.n, r.group_id) for r in group] == [("g.0", 0, 2, "g"), ("g.1", 1, 2, "g")]
    for rollout in group:
        assert set(rollout.versions) == {3}
        assert rollout.epoch == 1
        assert 1 <= len(rollout.token_ids) <= 4
        assert (rollout.logprobs <= 0).all()
    await stage.until_stored(TURNS, 0)


async def test_before_weights_are_announced_it_samples_nothing(stage: Stage) -> None:
    living = await stage.start(Generator)
    await ask(stage, "g")
    await until(lambda: living.actor.counters["handled"] == 1)
    assert living.actor.engine.load().generated_tokens == 0
    await serve(stage, 1, 0)
    await rollouts(stage, 1)


async def test_a_turn_waits_for_the_weights_that_admitted_it(stage: Stage) -> None:
    await serve(stage, 1, 0)
    living = await stage.start(Generator)
    await until(lambda: living.actor.gate.version == 0)
    await ask(stage, "early", version=1)
    await ask(stage, "due", version=0)
    ((first, _),) = await rollouts(stage, 1)
    assert first.group_id == "due"
    await serve(stage, 1, 1)
    _, (second, _) = await rollouts(stage, 2)
    assert (second.group_id, set(second.versions)) == ("early", {1})


async def test_a_file_that_comes_late_is_served_once_it_is_there(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.generator.actor.AGAIN_S", 0.05)
    late, away = stage.folder / "late.safetensors", stage.folder / "away.safetensors"
    manifest = WeightWriter(stage.folder / "weights").write(to_chunks(small_policy().named_tensors()), 1, 1)
    os.replace(manifest.sources[0].location, away)
    source = manifest.sources[0].model_copy(update={"location": str(late)})
    await stage.bus.publish(WEIGHTS, [manifest.model_copy(update={"sources": (source,)})], "1")
    living = await stage.start(Generator)
    await refused(stage, 1)
    away.rename(late)
    await until(lambda: living.actor.gate.version == 1)
    assert living.actor.counters["weights_refused"] == 1  # said once, however often it was tried


async def test_turns_of_an_undone_version_are_served_by_the_epoch_that_undid_it(stage: Stage) -> None:
    """The learner came back from version 9 at version 4: nobody will ever announce version 7 to these turns."""
    await stage.start(Generator)
    await serve(stage, 2, 4)
    await ask(stage, "g", epoch=1, version=9)
    ((rollout, _),) = await rollouts(stage, 1)
    assert (set(rollout.versions), rollout.epoch) == ({4}, 2)


async def test_turns_of_a_new_epoch_wait_for_its_weights_however_new_the_undone_ones_look(stage: Stage) -> None:
    await serve(stage, 1, 9)
    living = await stage.start(Generator)
    await until(lambda: living.actor.gate.version == 9)
    await ask(stage, "g", epoch=2, version=4)
    await until(lambda: living.actor.counters["handled"] == 1)
    assert living.actor.engine.load().generated_tokens == 0
    await serve(stage, 2, 4)
    ((rollout, _),) = await rollouts(stage, 1)
    assert (set(rollout.versions), rollout.epoch) == ({4}, 2)


@pytest.mark.parametrize(
    ("content", "says"),
    [("x" * 200, "200"), ("caf\u00e9", "\u00e9")],
    ids=["longer than the context", "with a character that has no token"],
)
async def test_a_prompt_that_can_not_be_read_is_a_dead_letter_with_the_reason_and_the_next_is_served(
    stage: Stage, content: str, says: str
) -> None:
    await serve(stage, 1, 0)
    await stage.start(Generator)
    await ask(stage, "bad", content)
    letter = (await stage.parcels(DEAD, 1))[0].record
    assert (letter.reason, letter.group_id, letter.topic) == (DeadReason.REJECTED, "bad", "turns")
    assert says in letter.error
    await ask(stage, "good")
    ((rollout, _),) = await rollouts(stage, 1)
    assert rollout.group_id == "good"


@pytest.mark.parametrize(
    "forged",
    [{"digest": f"xxh3-128:{7:032x}"}, {"size_bytes": 12}],
    ids=["another digest", "another size"],
)
async def test_weights_that_are_not_what_was_announced_are_refused_and_the_old_ones_go_on_serving(
    stage: Stage, forged: dict[str, Any]
) -> None:
    await serve(stage, 1, 0)
    living = await stage.start(Generator)
    await until(lambda: living.actor.gate.version == 0)
    await serve(stage, 1, 1, **forged)
    assert "epoch 1 version 1" in (await refused(stage, 1))[0]
    await ask(stage, "g")
    ((rollout, _),) = await rollouts(stage, 1)
    assert set(rollout.versions) == {0}
    await serve(stage, 1, 2)
    await until(lambda: living.actor.gate.version == 2)


@pytest.mark.parametrize(("epoch", "version"), [(1, 9), (2, 3), (2, 4)], ids=["old epoch", "old version", "again"])
async def test_a_broadcast_that_goes_back_is_refused_and_alerted(stage: Stage, epoch: int, version: int) -> None:
    await serve(stage, 2, 4)
    living = await stage.start(Generator)
    await until(lambda: living.actor.gate.version == 4)
    await serve(stage, epoch, version, published_s=7.0)
    assert f"epoch {epoch}" in (await refused(stage, 1))[0]
    assert (living.actor.gate.epoch, living.actor.gate.version) == (2, 4)
    assert living.actor.counters["weights_refused"] == 1


async def test_weights_of_another_architecture_are_refused(stage: Stage) -> None:
    await serve(stage, 1, 0)
    living = await stage.start(Generator)
    await until(lambda: living.actor.gate.version == 0)
    writer = WeightWriter(stage.folder / "other")
    stranger = writer.write(to_chunks(small_policy(hidden=32).named_tensors()), 1, 1)
    await stage.bus.publish(WEIGHTS, [stranger], "1")
    await refused(stage, 1)
    await ask(stage, "g")
    ((rollout, _),) = await rollouts(stage, 1)
    assert set(rollout.versions) == {0}


async def test_a_killed_generators_turn_goes_to_the_next_life_and_its_group_is_stored_once(stage: Stage) -> None:
    first = await stage.start(Generator)
    await ask(stage, "g")  # it holds the turn: there are no weights yet
    await until(lambda: first.actor.counters["handled"] == 1)
    await first.drain()
    await stage.until_stored(TURNS, 1)
    await serve(stage, 1, 0)
    await stage.start(Generator)
    assert len(await rollouts(stage, 1)) == 1
    await stage.until_stored(TURNS, 0)


async def test_a_folder_that_is_no_policy_is_bad_input_and_not_a_crash(stage: Stage) -> None:
    (stage.folder / "policy" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="policy"):
        await stage.start(Generator)
