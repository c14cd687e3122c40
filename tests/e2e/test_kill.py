"""Every process is killed once, the server too; the streams then show that nothing was lost and nothing counted twice.

The check reads the streams, and only then compares the curriculum's ledger with them: group ids count up from 1, so
each of them must have ended or still lie on a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from actors.learner.checkpoint import CheckpointStore
from actors.policy.model import load_policy
from actors.policy.weight_bytes import to_chunks
from messages import Batch, Experience, Outcome, OutcomeStatus, Step, WeightManifest, decode, headers
from messages.topics import (
    BATCHES,
    DEAD,
    EXPERIENCES,
    HEARTBEATS,
    OUTCOMES,
    ROLLOUTS,
    SNAPSHOTS,
    STEPS,
    TURNS,
    VERDICTS,
    WEIGHTS,
)
from runtime.blobs import StreamDigest
from runtime.config import ACTOR_KINDS
from tests.e2e.whole_run import RUN_FILE, WholeRun, ended_within, whole_run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SLOW = RUN_FILE.replace("lr = 2e-3", "lr = 1e-5")
"""A policy that hardly changes keeps its signal, so that the run lasts as long as it is hurt."""
MAX_LAG = 2
VICTIMS = ("curriculum", "reward", "replay", "learner", "evaluator", "verifier", "nats-server", "generator")
GROUP_SIZE = 8


class Witness:
    """Keeps what passes the batches topic, because a work queue forgets what was done."""

    def __init__(self) -> None:
        self.groups: dict[str, list[Experience]] = {}

    async def take(self, message: Msg) -> None:
        """A stored batch, or the retry of one."""
        batch: Batch = decode((message.headers or {})[headers.SCHEMA], message.data)[0]  # type: ignore[assignment]
        groups: dict[str, list[Experience]] = defaultdict(list)
        for experience in batch.experiences:
            groups[experience.rollout.group_id].append(experience)
        self.groups.update(groups)


@contextlib.asynccontextmanager
async def witnessed(run: WholeRun) -> AsyncIterator[Witness]:
    witness = Witness()
    subscription = await run.bus.nc.subscribe(BATCHES.all_subjects(run.bus.run), cb=witness.take)
    yield witness
    await subscription.unsubscribe()


async def newest_version(run: WholeRun) -> tuple[int, int]:
    newest = await run.bus.last(WEIGHTS)
    return (newest.record.epoch, newest.record.version) if newest else (0, 0)


async def hurt(run: WholeRun, victim: str) -> tuple[float, float]:
    """Kill one; seconds until its next life is at work, and until four more versions have been made."""
    seq = (await run.bus.stream_state(STEPS)).last_seq
    await run.until(STEPS, lambda step: step.stepped, seq + 1)  # the system moves
    began, now_s = time.monotonic(), time.time()
    if victim == "nats-server":
        await run.kill_server()
    else:
        run.kill(victim)
        await run.until_alive(victim, now_s)
    alive_s = time.monotonic() - began
    left = 4
    seq = (await run.bus.stream_state(STEPS)).last_seq

    def enough(step: Step) -> bool:
        nonlocal left
        left -= step.stepped
        return left <= 0

    await run.until(STEPS, enough, seq + 1)
    return alive_s, time.monotonic() - began


async def groups_on(run: WholeRun) -> dict[str, str]:
    """Every group that lies on a work queue: its id, and which queue."""
    found: dict[str, str] = {}
    for topic in (TURNS, ROLLOUTS, VERDICTS, EXPERIENCES, BATCHES):
        state = await run.bus.stream_state(topic)
        for seq in range(state.first_seq, state.last_seq + 1):
            received = await run.bus.get(topic, seq)
            for group_id in (received.headers.get(headers.GROUP, "") if received else "").split(","):
                if group_id:
                    found[group_id] = topic.name
    return found


def starts(manifests: list[WeightManifest]) -> dict[int, int]:
    """The version at which each epoch began."""
    began: dict[int, int] = {}
    for manifest in manifests:
        began.setdefault(manifest.epoch, manifest.version)
    return began


def survives(epoch: int, version: int, began: dict[int, int]) -> bool:
    """Whether a version made in an epoch is among the ancestors of the final weights."""
    return all(version <= start for later, start in began.items() if later > epoch)


async def test_killing_every_process_once_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    recovery: dict[str, tuple[float, float]] = {}
    async with whole_run(tmp_path, max_steps=0, every_steps=8, run_file=SLOW) as run, witnessed(run) as seen:
        await ended_within(asyncio.create_task(run.until(STEPS, lambda s: s.version >= 2), name="first steps"), run, 90)
        for victim in VICTIMS:
            hurting = asyncio.create_task(hurt(run, victim), name=f"killing the {victim}")
            recovery[victim] = await ended_within(hurting, run, 150)
        await run.supervisor.drain(ACTOR_KINDS[1:])
        await ended_within(asyncio.create_task(books_closed(run), name="the last outcomes"), run, 30)
        await run.drain()
        for victim, (alive_s, progress_s) in recovery.items():
            print(f"{victim:12} alive after {alive_s:5.1f} s, four more steps after {progress_s:5.1f} s")
        await check_streams(run, seen)


async def books_closed(run: WholeRun) -> None:
    """Wait until the curriculum has seen the last outcome."""
    outcomes: list[Outcome] = await run.records(OUTCOMES)
    trained = sum(outcome.n_samples for outcome in outcomes if outcome.status is OutcomeStatus.TRAINED)
    await run.until(HEARTBEATS, lambda beat: beat.kind == "curriculum" and beat.gauges.get("trained") == trained)


async def check_streams(run: WholeRun, seen: Witness) -> None:
    steps: list[Step] = await run.records(STEPS)
    outcomes: list[Outcome] = await run.records(OUTCOMES)
    manifests: list[WeightManifest] = await run.records(WEIGHTS)
    ledger = (await run.bus.last(HEARTBEATS, "curriculum", "curriculum-0")).record.gauges  # type: ignore[union-attr]
    ends = ends_of(outcomes, await run.records(DEAD))
    check_nothing_is_lost(await dispatched(run), ends, await groups_on(run))
    check_books(ledger, await dispatched(run), ends)
    check_versions(manifests)
    began = starts(manifests)
    surviving = [step for step in steps if step.stepped and survives(step.epoch, step.version, began)]
    assert [step.version for step in surviving] == list(range(1, manifests[-1].version + 1))
    check_no_group_twice(surviving, outcomes)
    check_lag(surviving, seen, began)
    check_final_weights(manifests[-1], run)


async def dispatched(run: WholeRun) -> set[str]:
    """Ids of all groups that were ever dispatched: the curriculum numbers them."""
    saved = await run.bus.last(SNAPSHOTS, "curriculum")
    assert saved is not None
    ledger = json.loads(saved.record.state)["ledger"]
    return {f"{ledger['prefix']}-{number}" for number in range(1, ledger["next_number"])}


def ends_of(outcomes: list[Outcome], dead: list[Any]) -> dict[str, OutcomeStatus]:
    """How each group ended. One that was sampled twice may have come to two ends: trained outranks the others."""
    trained = Counter(outcome.group_id for outcome in outcomes if outcome.status is OutcomeStatus.TRAINED)
    assert not {group for group, n in trained.items() if n > 1}, "told as trained more than once"
    ends = {outcome.group_id: outcome.status for outcome in outcomes if outcome.status is not OutcomeStatus.TRAINED}
    for letter in dead:
        for group_id in filter(None, (letter.group_id or "").split(",")):
            ends.setdefault(group_id, OutcomeStatus.DEAD)
    return ends | dict.fromkeys(trained, OutcomeStatus.TRAINED)


def check_nothing_is_lost(all_groups: set[str], ends: dict[str, OutcomeStatus], waiting: dict[str, str]) -> None:
    assert not all_groups - set(ends) - set(waiting), "neither ended nor waiting"
    assert not (set(ends) | set(waiting)) - all_groups, "never dispatched"


def check_books(ledger: dict[str, float], all_groups: set[str], ends: dict[str, OutcomeStatus]) -> None:
    """The curriculum's own books say what the streams say."""
    counted = Counter(ends.values())
    assert ledger["dispatched"] == GROUP_SIZE * len(all_groups)
    assert ledger["trained"] == GROUP_SIZE * counted[OutcomeStatus.TRAINED]
    assert ledger["dropped"] == GROUP_SIZE * counted[OutcomeStatus.DROPPED]
    assert ledger["dead"] == GROUP_SIZE * counted[OutcomeStatus.DEAD]
    assert ledger["open"] == GROUP_SIZE * (len(all_groups) - len(ends))


def check_versions(manifests: list[WeightManifest]) -> None:
    by_epoch: dict[int, list[int]] = defaultdict(list)
    for manifest in manifests:
        by_epoch[manifest.epoch].append(manifest.version)
    assert sorted(by_epoch) == list(by_epoch) == list(range(1, len(by_epoch) + 1))
    for versions in by_epoch.values():
        assert versions == list(range(versions[0], versions[0] + len(versions)))


def check_no_group_twice(surviving: list[Step], outcomes: list[Outcome]) -> None:
    trained = Counter(group_id for step in surviving for group_id in step.group_ids)
    assert not {group for group, n in trained.items() if n > 1}, "trained in two surviving steps"
    told = {outcome.group_id for outcome in outcomes if outcome.status is OutcomeStatus.TRAINED}
    assert told == set(trained), "trained and told so are not the same groups"


def check_lag(surviving: list[Step], seen: Witness, began: dict[int, int]) -> None:
    checked = 0
    for step in surviving:
        for group_id in step.group_ids:
            for experience in seen.groups.get(group_id, ()):
                rollout = experience.rollout
                assert step.version - 1 - int(rollout.versions.min()) <= MAX_LAG
                assert survives(rollout.epoch, int(rollout.versions.max()), began), "sampled by undone weights"
                checked += 1
    assert checked > 0.8 * sum(step.n_samples for step in surviving)


def check_final_weights(manifest: WeightManifest, run: WholeRun) -> None:
    """What was announced last is what the last checkpoint holds, to the bit."""
    newest = CheckpointStore(run.folder.checkpoints, keep=2).paths()[-1]
    digest = StreamDigest()
    for chunk in to_chunks(load_policy(newest, "cpu").named_tensors()):
        digest.update(chunk)
    assert digest.text() == manifest.digest
