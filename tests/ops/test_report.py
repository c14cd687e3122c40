"""The report says what the history says, names what failed, and calls sharpening by its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messages import DropReason, Evaluation, Heartbeat, Outcome, OutcomeStatus, Record, Step
from messages.learning import DomainStep
from ops import charts, comparison, report
from ops.history import final_states, read, surviving
from ops.summary import Change, law_closes, movement

START = 1_800_000_000.0


def step(version: int, epoch: int = 1, batch: int | None = None, stepped: bool = True, **more) -> Step:
    part = DomainStep(n_samples=32, n_tokens=640, reward_mean=0.1 * min(version, 9), pass_rate_mean=0.5)
    fields = {
        "n_samples": 32,
        "n_tokens": 640,
        "lag_mean": 1.0,
        "lag_max": 2,
        "domains": {"sums": part},
        "busy_s": 1.0,
        "waiting_s": 1.0,
        "finished_s": START + 2 * version,
        "metrics": {"entropy": 0.5},
    }
    number = version if batch is None else batch
    return Step(
        epoch=epoch, version=version, batch_id=f"b{epoch}-{number}", batch_number=number, stepped=stepped,
        **{**fields, **more},
    )  # fmt: skip


def evaluation(version: int, sampled: float, greedy: float, domain: str = "sums", **more) -> Evaluation:
    fields = {"epoch": 1, "n_tasks": 200, "samples_per_task": 8, "full": True, "seconds": 3.0, "finished_s": START}
    return Evaluation(
        version=version, domain=domain, sampled_accuracy=sampled, greedy_accuracy=greedy, **{**fields, **more}
    )


def outcome(group: str, status: OutcomeStatus, reason: DropReason | None = None, n: int = 16) -> Outcome:
    return Outcome(group_id=group, task_id="t", domain="sums", status=status, reason=reason, n_samples=n, actor="x")


def beat(kind: str, sent_s: float, started_s: float = 0.0, instance: int = 0, counters=None, gauges=None) -> Heartbeat:
    return Heartbeat(
        kind=kind, instance=f"{kind}-{instance}", host="h", pid=1, state="running", started_s=START + started_s,
        sent_s=START + sent_s, in_flight=0, loop_lag_s=0.0, rss_bytes=1, counters=counters or {}, gauges=gauges or {},
    )  # fmt: skip


LEDGER = {"dispatched": 96, "trained": 32, "dropped": 16, "dead": 0, "open": 48}


def run_folder(path: Path, *records: Record, **settings) -> Path:
    names = {Step: "steps", Evaluation: "evaluations", Outcome: "outcomes", Heartbeat: "heartbeats"}
    (path / "history").mkdir(parents=True)
    for record in records:
        with (path / "history" / f"{names[type(record)]}.jsonl").open("a") as file:
            file.write(json.dumps({**record.model_dump(mode="json"), "stored_s": 1.0}) + "\n")
    resolved = {"run": {"name": path.name}, "training": {"max_lag": 2}, **settings}
    (path / "resolved.json").write_text(json.dumps(resolved))
    return path


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Drawing takes seconds; only the test of the picture draws."""
    if "picture_is_drawn" not in request.node.name:
        monkeypatch.setattr(charts, "available", lambda: False)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return run_folder(
        tmp_path / "demo",
        *(step(version) for version in range(1, 21)),
        *(evaluation(0, 0.40, 0.85), evaluation(10, 0.60, 0.86), evaluation(20, 0.80, 0.86)),
        *(evaluation(0, 0.97, 0.99, "copying"), evaluation(20, 0.98, 0.99, "copying")),
        outcome("a", OutcomeStatus.TRAINED),
        outcome("b", OutcomeStatus.TRAINED),
        outcome("c", OutcomeStatus.DROPPED, DropReason.NO_SIGNAL),
        beat("generator", 10, counters={"tokens": 1000, "rollouts": 100, "busy_s": 9.0, "waiting_s": 1.0}),
        beat("generator", 20, counters={"tokens": 2000, "rollouts": 200, "busy_s": 15.0, "waiting_s": 5.0},
             gauges={"bus_s": 0.2, "version": 9}),
        beat("learner", 40, counters={"tokens": 12800, "busy_s": 20.0, "waiting_s": 20.0}, gauges={"bus_s": 0.2}),
        beat("curriculum", 40, gauges=LEDGER),
    )  # fmt: skip


def test_the_summary_holds_every_figure_that_a_run_is_judged_by(whole):
    document = report.write(whole).document
    assert json.loads((whole / "summary.json").read_text()) == document
    sums = document["evaluation"]["domains"]["sums"]
    assert (sums["before"]["sampled_accuracy"], sums["after"]["sampled_accuracy"]) == (0.40, 0.80)
    assert sums["change"] == {"sampled_accuracy": pytest.approx(0.4), "greedy_accuracy": pytest.approx(0.01)}
    assert document["evaluation"]["mean"]["change"]["sampled_accuracy"] == pytest.approx((0.4 + 0.01) / 2)
    assert document["weight_versions"] == 20
    assert document["rollouts"] == {
        "dispatched": 96,
        "generated": 200,
        "trained": 32,
        "dropped": {"no_signal": 16},
        "dead": 0,
        "open": 48,
        "law_closes": True,
    }
    assert document["lag"] == {"mean": 1.0, "max": 2, "bound": 2}
    assert document["generator"]["waiting_share"] == 0.25
    assert document["generator"]["tokens_per_s"] == 100.0
    assert document["learner"]["waiting_share"] == 0.5
    assert document["bus_s_per_rollout"] == pytest.approx(0.002)
    assert document["durations"]["training_s"] == 40.0
    assert document["verdict"]["movement"] == {"copying": "no_room", "sums": "rose"}


def test_counters_of_an_actor_that_was_restarted_add_up(tmp_path):
    folder = run_folder(
        tmp_path / "r",
        beat("generator", 10, 0, counters={"rollouts": 100}),
        beat("generator", 15, 12, counters={"rollouts": 7}),
        beat("generator", 15, 0, instance=1, counters={"rollouts": 1}),
    )
    assert report.write(folder).summary.rollouts.generated == 108


def test_steps_that_a_restart_has_undone_are_left_out_and_counted():
    steps = [step(1), step(2), step(3), step(3, epoch=2, batch=4), step(4, epoch=2, batch=5)]
    assert [(s.epoch, s.version) for s in surviving(steps)] == [(1, 1), (1, 2), (2, 3), (2, 4)]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_what_survives_is_one_step_per_version_without_a_gap(lengths):
    steps, version, batch = [], 0, 0
    for epoch, length in enumerate(lengths, start=1):
        version = max(0, version - 2)
        for _ in range(length):
            version, batch = version + 1, batch + 1
            steps.append(step(version, epoch=epoch, batch=batch))
    assert [s.version for s in surviving(steps)] == list(range(1, version + 1))


def test_a_replayed_group_is_open_again_until_it_ends_once_more():
    ended = [outcome("a", OutcomeStatus.DEAD), outcome("b", OutcomeStatus.DEAD), outcome("a", OutcomeStatus.REPLAYED)]
    assert set(final_states(ended)) == {"b"}
    assert final_states([*ended, outcome("a", OutcomeStatus.TRAINED)])["a"].status is OutcomeStatus.TRAINED


def test_a_ledger_that_does_not_add_up_breaks_the_law_and_the_report_says_so_first(whole):
    (whole / "history" / "heartbeats.jsonl").write_text(
        beat("curriculum", 40, gauges={**LEDGER, "open": 47}).model_dump_json()
    )
    written = report.write(whole)
    assert written.summary.rollouts.law_closes is False
    text = written.words_path.read_text()
    assert text.index("The law of conservation does not close") < text.index("## Held-out accuracy")


@pytest.mark.parametrize(
    ("recounted", "closes"), [(48, True), (96, True), (47, False), (97, False)],
    ids=["as the ledger says", "closed since its last word", "an outcome is missing", "more than was dispatched"],
)  # fmt: skip
def test_the_law_is_checked_against_the_outcomes_themselves(recounted, closes):
    assert law_closes(LEDGER, recounted) is closes


def test_a_group_that_died_has_no_outcome_and_still_counts(whole):
    with (whole / "history" / "heartbeats.jsonl").open("a") as file:
        file.write(beat("curriculum", 41, gauges={**LEDGER, "dead": 16, "open": 32}).model_dump_json())
    rollouts = report.write(whole).summary.rollouts
    assert (rollouts.dead, rollouts.open, rollouts.law_closes) == (16, 32, True)


def test_without_a_ledger_the_law_is_not_claimed(tmp_path):
    assert report.write(run_folder(tmp_path / "r", step(1))).summary.rollouts.law_closes is None


def test_sampled_accuracy_that_catches_up_with_greedy_is_called_sharpening(whole):
    text = report.write(whole).words_path.read_text()
    assert "The gain is **sharpening**" in text
    assert "has not shown a new skill" in text


def test_a_greedy_gain_beyond_its_noise_is_called_what_it_is(tmp_path):
    folder = run_folder(tmp_path / "r", step(1), evaluation(0, 0.2, 0.28), evaluation(1, 0.68, 0.70))
    text = report.write(folder).words_path.read_text()
    assert "the policy's best answer got better" in text
    assert "The gain is **sharpening**" not in text


def test_a_small_gain_above_a_greedy_start_of_nothing_is_called_neither(tmp_path):
    folder = run_folder(tmp_path / "r", step(1), evaluation(0, 0.00, 0.00), evaluation(1, 0.06, 0.02))
    text = report.write(folder).words_path.read_text()
    assert "not only sharpening" in text
    assert "**sharpening**" not in text


def test_a_run_that_learned_nothing_says_so(tmp_path):
    folder = run_folder(tmp_path / "r", step(1), evaluation(0, 0.5, 0.8), evaluation(1, 0.5, 0.8))
    text = report.write(folder).words_path.read_text()
    assert "this run shows no learning" in text
    assert "This seed does not meet the aim" in text


def test_a_domain_that_fell_is_named_in_the_table_and_above_it(tmp_path):
    folder = run_folder(
        tmp_path / "r", step(1), evaluation(0, 0.5, 0.8), evaluation(1, 0.9, 0.9),
        evaluation(0, 0.5, 0.8, "gcd"), evaluation(1, 0.3, 0.5, "gcd"),
    )  # fmt: skip
    text = report.write(folder).words_path.read_text()
    assert "Sampled accuracy did not rise in gcd (-20.0 points)" in text
    assert "**fell**" in next(line for line in text.splitlines() if line.startswith("| gcd"))
    assert "Greedy accuracy fell by more than its noise in gcd" in text


@pytest.mark.parametrize(
    ("before", "gain", "noise", "says"),
    [
        (0.5, 0.2, 0.03, "rose"),
        (0.5, -0.2, 0.03, "fell"),
        (0.5, 0.02, 0.03, "held"),
        (0.97, 0.01, 0.02, "no_room"),
        (0.97, -0.1, 0.02, "fell"),
        (None, None, None, "unknown"),
    ],
)
def test_a_movement_is_judged_against_noise_and_room(before, gain, noise, says):
    after = None if before is None else before + gain
    assert movement(Change(before=before, after=after, gain=gain, noise=noise)) == says


def test_only_full_evaluations_are_compared_when_there_are_two(tmp_path):
    folder = run_folder(
        tmp_path / "r", step(1), evaluation(0, 0.4, 0.8), evaluation(5, 0.9, 0.9, full=False),
        evaluation(6, 0.6, 0.8), evaluation(7, 0.1, 0.1, full=False),
    )  # fmt: skip
    sums = report.write(folder).summary.domains["sums"]
    assert (sums.sampled.after, sums.versions, sums.full) == (0.6, (0, 6), True)


def test_the_headline_says_which_domains_and_which_version_were_measured(tmp_path):
    untested = {"sums": step(1).domains["sums"], "untested": step(1).domains["sums"]}
    steps = [step(version, domains=untested) for version in range(1, 10)]
    folder = run_folder(tmp_path / "r", *steps, evaluation(0, 0.4, 0.8), evaluation(6, 0.6, 0.8))
    said = report.write(folder).headline
    assert "9 weight versions" in said
    assert "held-out tasks of sums went from 40.0 % to 60.0 % at version 6, the last that was fully evaluated" in said
    assert "2 domains" not in said


def test_what_the_launcher_said_of_the_end_stays_as_it_is(whole):
    said = {"ended_because": "stopped by hand", "seed": 7, "weight_versions": 20, "bus_s_per_rollout": None}
    (whole / "summary.json").write_text(json.dumps(said))
    first = report.write(whole)
    again = report.write(whole)
    assert first.document == again.document
    assert (again.document["ended_because"], again.document["seed"]) == ("stopped by hand", 7)
    assert again.document["bus_s_per_rollout"] == pytest.approx(0.002)
    assert "It ended because: stopped by hand." in again.words_path.read_text()
    assert again.headline.startswith("Seed 7: ")


@pytest.mark.parametrize(
    ("launcher", "says"),
    [
        (
            {"ended_because": "crash loop", "exit_code": 1},
            "The run failed: crash loop.",
        ),
        ({"ended_because": "version 20 is reached", "exit_code": 0, "restarts": 2}, "2 processes crashed"),
        ({}, "The launcher left no word of the run's end"),
    ],
)
def test_an_end_that_is_not_as_it_should_be_stands_first(whole, launcher, says):
    (whole / "summary.json").write_text(json.dumps(launcher))
    text = report.write(whole).words_path.read_text()
    assert text.index(says) < text.index("## Held-out accuracy")


def test_a_run_that_ended_well_has_nothing_to_look_at_first(whole):
    ending = {"ended_because": "version 20 is reached", "exit_code": 0, "restarts": 0}
    (whole / "summary.json").write_text(json.dumps(ending))
    assert "## Look at this first" not in report.write(whole).words_path.read_text()


def test_torn_and_foreign_lines_are_passed_over_and_counted(whole):
    with (whole / "history" / "steps.jsonl").open("a") as file:
        file.write('{"epoch": 1, "vers')
    assert read(whole / "history").unreadable == 1
    assert report.write(whole).document["unreadable_lines"] == 1


def test_a_run_killed_before_its_first_step_still_gets_a_report(tmp_path):
    written = report.write(run_folder(tmp_path / "r"))
    assert written.picture is None
    assert "no gain is claimed" in written.headline


def test_a_folder_that_is_no_run_is_an_error_that_names_it(tmp_path):
    with pytest.raises(report.NoHistory, match="has no history folder, expected a run folder such as runs/demo"):
        report.write(tmp_path)


def test_the_picture_is_drawn_and_wide_enough_for_many_domains(whole):
    pytest.importorskip("matplotlib")
    for i in range(14):
        with (whole / "history" / "evaluations.jsonl").open("a") as file:
            for version, score in ((0, 0.3), (20, 0.7)):
                file.write(evaluation(version, score, score, f"domain-{i}").model_dump_json() + "\n")
    picture = report.write(whole).picture
    assert picture is not None
    header = picture.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(header[16:20], "big") > 1500


def test_the_mean_panel_leaves_out_domains_that_are_never_measured():
    evaluations = [evaluation(0, 0.2, 0.4), evaluation(0, 0.4, 0.8, "words"), evaluation(5, 0.9, 0.9, "words")]
    evaluations += [evaluation(0, 0.0, 0.0, "untested", n_tasks=0)]
    assert charts.mean_scores(evaluations, "sampled_accuracy") == [(0, pytest.approx(0.3))]


def test_without_matplotlib_the_report_says_how_to_get_the_picture(whole):
    written = report.write(whole)
    assert written.picture is None
    assert "pip install 'busrl[report]'" in written.words_path.read_text()


def test_generated_tokens_per_second_come_from_the_beats(whole):
    assert charts.generated_tokens_per_s(read(whole / "history")) == [(9.0, 100.0)]


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=50), st.integers(1, 12))
def test_a_running_mean_stays_between_the_extremes_and_begins_with_the_first(values, width):
    smooth = charts.running_mean(values, width)
    assert len(smooth) == len(values)
    assert smooth[0] == values[0]
    assert all(min(values) - 1e-9 <= value <= max(values) + 1e-9 for value in smooth)


def documents() -> list[dict]:
    return [
        {
            "run": "demo", "seed": seed,
            "evaluation": {
                "mean": {"before": {"sampled_accuracy": 0.4, "greedy_accuracy": 0.8},
                         "change": {"sampled_accuracy": gain, "greedy_accuracy": greedy}},
                "domains": {"sums": {"change": {"sampled_accuracy": gain, "greedy_accuracy": greedy}}},
            },
            "rollouts": {"law_closes": True}, "lag": {"max": 2, "bound": 2},
        }
        for seed, gain, greedy in ((0, 0.30, 0.01), (1, 0.35, 0.02), (2, 0.10, -0.03))
    ]  # fmt: skip


def test_seeds_are_compared_by_mean_lowest_and_highest():
    found = comparison.compare(documents()[:2])
    gain = found.figures["sampled accuracy gain"]
    assert (gain.mean, gain.lowest, gain.highest, gain.n) == (pytest.approx(0.325), 0.30, 0.35, 2)
    assert found.succeeded


def test_a_seed_that_fails_stays_visible():
    found = comparison.compare(documents())
    assert set(found.failures) == {"seed 2"}
    text = found.markdown()
    assert "1 of 3 runs miss the aim" in text
    assert "**seed 2**: sampled accuracy rose by 10.0 points, aimed at 25; greedy accuracy fell by 3.0 points" in text


def test_a_real_summary_can_be_compared(whole):
    report.write(whole)
    found = comparison.compare([comparison.load(whole)], aimed_gain=0.2)
    assert found.succeeded
    assert found.figures["lag, maximum"].highest == 2


def test_a_run_without_a_summary_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(comparison.NoSummary, match=r"summary\.json"):
        comparison.load(tmp_path)
