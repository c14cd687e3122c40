"""A whole run that knows nothing at its start, and what it has learnt, kept and told of itself at its end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from messages import Evaluation, Outcome, OutcomeStatus, Step
from messages.topics import ALERTS, DEAD, EVALUATIONS, HEARTBEATS, OUTCOMES, STEPS
from ops import semconv
from ops.traces import SpanLine, read_spans
from tests.e2e.whole_run import WholeRun, ended_within, whole_run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MAX_STEPS = 16
MAX_LAG = 2
HOPS = ("curriculum", "generator", "verifier", "reward", "replay")


@dataclass
class Finished:
    """What a run left on the bus and in its folder."""

    steps: list[Step]
    outcomes: list[Outcome]
    evaluations: list[Evaluation]
    dead: list[Any]
    alerts: list[Any]
    ledger: dict[str, float]
    exit_codes: dict[str, int | None]
    spans: list[SpanLine] = field(repr=False)

    def score(self, domain: str, version: int) -> float:
        """Sampled accuracy on held-out tasks."""
        found = [e for e in self.evaluations if (e.domain, e.version, e.full) == (domain, version, True)]
        assert len(found) == 1
        assert found[0].sampled_accuracy is not None
        return found[0].sampled_accuracy


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One run for all tests of this file."""
    return asyncio.run(one_run(tmp_path_factory.mktemp("learns")))


async def one_run(folder: Path) -> Finished:
    async with whole_run(folder, max_steps=MAX_STEPS) as run:
        await ended_within(asyncio.create_task(scored_last(run), name="the last evaluation"), run, 150)
        await ended_within(asyncio.create_task(books_agree(run), name="the last outcomes"), run, 30)
        await run.drain()
        curriculum = await run.bus.last(HEARTBEATS, "curriculum", "curriculum-0")
        assert curriculum is not None
        return Finished(
            *[await run.records(topic) for topic in (STEPS, OUTCOMES, EVALUATIONS, DEAD, ALERTS)],
            ledger=curriculum.record.gauges,
            exit_codes=run.exit_codes(),
            spans=list(read_spans(run.folder.telemetry)),
        )


async def scored_last(run: WholeRun) -> None:
    """Wait for the last version's score in both domains."""
    for domain in ("letters", "digits"):
        await run.until(EVALUATIONS, lambda e, domain=domain: e.version == MAX_STEPS and e.domain == domain)  # type: ignore[misc]


async def books_agree(run: WholeRun) -> None:
    """Wait until the curriculum has seen every trained group's end."""
    trained = sum(step.n_samples for step in await run.records(STEPS))
    await run.until(HEARTBEATS, lambda beat: beat.kind == "curriculum" and beat.gauges.get("trained") == trained)


@pytest.mark.parametrize(("domain", "margin"), [("letters", 0.3), ("digits", 0.3)])
def test_the_held_out_score_rises_clearly(finished: Finished, domain: str, margin: float) -> None:
    assert finished.score(domain, MAX_STEPS) > finished.score(domain, 0) + margin


def test_the_law_closes_exactly(finished: Finished) -> None:
    f = finished.ledger
    assert f["dispatched"] == f["trained"] + f["dropped"] + f["dead"] + f["open"]
    assert f["trained"] == sum(step.n_samples for step in finished.steps)
    dropped = [outcome for outcome in finished.outcomes if outcome.status is OutcomeStatus.DROPPED]
    assert f["dropped"] == sum(outcome.n_samples for outcome in dropped)
    assert all(outcome.reason is not None for outcome in dropped)


def test_no_token_was_trained_that_was_too_old_and_the_run_was_not_in_lock_step(finished: Finished) -> None:
    assert max(step.lag_max for step in finished.steps) <= MAX_LAG
    assert sum(step.lag_mean for step in finished.steps) > 0


def test_every_version_has_one_step(finished: Finished) -> None:
    stepped = [step.version for step in finished.steps if step.stepped]
    assert stepped == list(range(1, MAX_STEPS + 1))


def test_nothing_died_and_every_process_was_drained(finished: Finished) -> None:
    assert not finished.dead
    assert not [alert.summary for alert in finished.alerts]
    assert set(finished.exit_codes.values()) == {0}


def test_a_tasks_life_is_one_trace_from_the_users_publish_to_the_batch(finished: Finished) -> None:
    group = finished.steps[-1].group_ids[0]
    dispatch = next(span for span in finished.spans if span.attributes.get(semconv.RL_GROUP_ID) == group)
    life = [span for span in finished.spans if span.trace_id == dispatch.trace_id]
    assert {span.instance.rsplit("-", 1)[0] for span in life} >= set(HOPS)
    known = {span.span_id for span in life}
    roots = [span for span in life if span.parent_id not in known]
    assert [root.instance for root in roots] == ["user-0"], [span.name for span in roots]


def test_a_step_links_to_the_traces_of_the_groups_that_it_trained(finished: Finished) -> None:
    traces = {
        span.attributes[semconv.RL_GROUP_ID]: span.trace_id
        for span in finished.spans
        if semconv.RL_GROUP_ID in span.attributes
    }
    step = next(s for s in finished.steps if s.stepped and s.version == MAX_STEPS)
    span = next(s for s in finished.spans if s.attributes.get(semconv.RL_BATCH_ID) == step.batch_id)
    assert {trace for trace, _ in span.links} >= {traces[group] for group in step.group_ids}
