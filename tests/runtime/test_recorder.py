"""What actors publish is written down once, survives a killed launcher, and can be awaited; with a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from messages import DeadLetter, DeadReason, Turn
from messages.task import ChatMessage, Sampling
from messages.topics import DEAD, EVALUATIONS, HEARTBEATS, OUTCOMES, STEPS, TURNS
from runtime.errors import BusError
from runtime.recorder import Recorder, as_line, read_heartbeats
from tests.conftest import LiveBus
from tests.runtime.sample_run import NOW_S, beat, evaluation, outcome, step


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def letter() -> DeadLetter:
    return DeadLetter(
        id="l1", topic="turns", subject="busrl.test.turns.d", stream_seq=1, actor="generator-0", reason=DeadReason.BUG,
        error="ValueError: no", deliveries=1, payload=b"\x00\xff", died_s=NOW_S,
    )  # fmt: skip


async def fill(live: LiveBus) -> None:
    bus = await live.connect()
    for version in (1, 2, 3):
        await bus.publish(STEPS, [step(version)], "1")
    await bus.publish(OUTCOMES, [outcome("g1", "sums")], "trained", "sums")
    await bus.publish(EVALUATIONS, [evaluation("sums", 3, 0.5, 0.6)], "sums")
    await bus.publish(DEAD, [letter()], "turns")


async def recorded(live: LiveBus, history: Path | None) -> Recorder:
    recorder = Recorder(await live.connect(), history)
    await recorder.start()
    await recorder.catch_up()
    return recorder


async def test_everything_on_the_bus_is_in_the_files_and_in_the_facts(live: LiveBus, tmp_path: Path):
    await fill(live)
    recorder = await recorded(live, tmp_path)
    await recorder.stop()
    assert [line["version"] for line in lines(tmp_path / "steps.jsonl")] == [1, 2, 3]
    assert lines(tmp_path / "outcomes.jsonl")[0]["group_id"] == "g1"
    assert lines(tmp_path / "evaluations.jsonl")[0]["sampled_accuracy"] == 0.5
    assert recorder.facts.version == 3
    assert recorder.facts.n_dead_letters == 1


async def test_a_new_launcher_rebuilds_the_files_without_doubles(live: LiveBus, tmp_path: Path):
    await fill(live)
    await (await recorded(live, tmp_path)).stop()
    bus = await live.connect()
    await bus.publish(STEPS, [step(3)], "1")  # the same step, said again by a learner that was restarted
    await bus.publish(STEPS, [step(4)], "1")
    await (await recorded(live, tmp_path)).stop()
    assert [line["version"] for line in lines(tmp_path / "steps.jsonl")] == [1, 2, 3, 4]


async def test_counters_go_on_over_a_launcher_that_was_killed(live: LiveBus, tmp_path: Path):
    bus = await live.connect()
    await bus.publish(HEARTBEATS, [beat("learner-0", pid=1, counters={"tokens": 100})], "learner", "learner-0")
    first = await recorded(live, tmp_path)
    await first.settle()
    await first.stop()
    newer = beat("learner-0", pid=2, counters={"tokens": 30}, sent_s=NOW_S + 9)
    await bus.publish(HEARTBEATS, [newer], "learner", "learner-0")
    second = await recorded(live, tmp_path)
    await second.settle()
    await second.stop()
    assert second.facts.total("learner", "tokens") == 130


async def test_the_last_beat_of_every_life_is_written(live: LiveBus, tmp_path: Path):
    recorder = Recorder(await live.connect(), tmp_path)
    await recorder.start()
    for pid, sent in ((1, 0.0), (1, 1.0), (1, 2.0), (2, 3.0), (2, 4.0)):
        recorder._take_beat(beat("learner-0", pid=pid, sent_s=NOW_S + sent, counters={"n": sent}))
    await recorder.stop()
    written = [(found.pid, found.counters["n"]) for found in read_heartbeats(tmp_path / "heartbeats.jsonl")]
    assert (1, 2.0) in written
    assert (2, 4.0) in written
    assert len(written) == 3  # and the first of all; the others came too soon after one that was written


async def test_somebody_who_only_looks_writes_nothing(live: LiveBus, tmp_path: Path):
    await fill(live)
    recorder = await recorded(live, None)
    await recorder.stop()
    assert recorder.facts.version == 3
    assert recorder._files == {}


async def test_queue_depths_are_those_of_the_streams(live: LiveBus):
    bus = await live.connect("curriculum")
    turn = Turn(
        id="t", group_id="g", task_id="a", task_seq=1, domain="d", messages=(ChatMessage(role="user", content="?"),),
        n=2, sampling=Sampling(max_tokens=4), admitted_version=0,
    )  # fmt: skip
    await bus.publish(TURNS, [turn], "d")
    recorder = await recorded(live, None)
    admin = await live.connect()
    await admin.publish(HEARTBEATS, [beat("learner-0")], "learner", "learner-0")
    await recorder.settle()
    await recorder.stop()
    assert recorder.facts.queues["turns"].messages == 1
    assert recorder.facts.queues["rollouts"].messages == 0


async def test_catching_up_that_takes_too_long_says_what_is_missing(live: LiveBus):
    await fill(live)
    recorder = Recorder(await live.connect(), None)  # not started: it will never have read them
    with pytest.raises(BusError, match="steps"):
        await recorder.catch_up(timeout_s=0.05)


def test_a_dead_letters_payload_stays_out_of_the_line():
    document = json.loads(as_line(letter(), 1.23456))
    assert "payload" not in document
    assert document["stored_s"] == 1.235


def test_heartbeats_that_a_crash_cut_off_are_passed_over(tmp_path: Path):
    path = tmp_path / "heartbeats.jsonl"
    whole = as_line(beat("learner-0"), NOW_S)
    path.write_text(whole + whole[: len(whole) // 2])
    assert len(read_heartbeats(path)) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
async def test_a_full_disk_costs_lines_of_the_history_and_never_the_facts(live: LiveBus, tmp_path: Path):
    await fill(live)
    (tmp_path / "steps.jsonl").symlink_to("/dev/full")
    recorder = await recorded(live, tmp_path)
    await (await live.connect()).publish(STEPS, [step(4)], "1")
    await recorder.catch_up()
    await recorder.stop()
    assert recorder.facts.version == 4
    assert lines(tmp_path / "outcomes.jsonl")[0]["group_id"] == "g1"
