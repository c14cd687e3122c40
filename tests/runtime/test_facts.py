"""Facts add up over restarts and repeats, and the ledger says whether the law of conservation holds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messages import OutcomeStatus
from messages.learning import DropReason
from runtime.facts import Facts
from runtime.ledger import booked, current
from tests.runtime.sample_run import NOW_S, beat, busy_run, evaluation, outcome, step


def test_counters_are_added_up_over_the_lives_of_an_actor():
    facts = Facts()
    facts.on(beat("generator-0", pid=1, counters={"tokens": 100}))
    facts.on(beat("generator-0", pid=1, counters={"tokens": 150}, sent_s=NOW_S + 1))
    facts.on(beat("generator-0", pid=2, counters={"tokens": 7}, sent_s=NOW_S + 2))
    assert facts.total("generator", "tokens") == 157
    assert facts.actors["generator-0"].lives == 2


def test_an_older_heartbeat_changes_nothing():
    facts = Facts()
    facts.on(beat("learner-0", counters={"steps": 5}))
    facts.on(beat("learner-0", counters={"steps": 4}, sent_s=NOW_S - 3))
    assert facts.total("learner", "steps") == 5


def test_seconds_on_the_bus_grow_over_lives_although_they_are_gauges():
    facts = Facts()
    facts.on(beat("reward-0", pid=1, gauges={"bus_s": 2.0}))
    facts.on(beat("reward-0", pid=2, gauges={"bus_s": 1.0}, sent_s=NOW_S + 1))
    assert facts.total("reward", "bus_s") == 3.0


def test_an_actor_that_stops_beating_is_silent_unless_it_has_stopped():
    facts = busy_run()
    assert facts.actors["generator-1"].state(NOW_S) == "silent"
    assert facts.actors["generator-0"].state(NOW_S) == "running"
    facts.on(beat("reward-0", state="stopped"))
    assert facts.actors["reward-0"].state(NOW_S + 1000) == "stopped"


def test_a_step_that_comes_twice_counts_once():
    facts = Facts()
    assert facts.on(step(1))
    assert not facts.on(step(1))
    assert (facts.n_steps, facts.version) == (1, 1)


def test_a_restarted_learner_sets_the_version_back():
    facts = Facts()
    facts.on(step(7, epoch=1))
    facts.on(step(5, epoch=2, batch_id="again"))
    assert facts.version == 5


def test_a_batch_without_a_step_is_counted_by_its_reason():
    facts = Facts()
    facts.on(step(3))
    facts.on(step(3, batch_id="x", stepped=False, reason="no_signal"))
    assert (facts.n_steps, facts.n_batches, dict(facts.skipped)) == (1, 2, {"no_signal": 1})


def test_lag_is_weighted_by_samples_and_keeps_its_maximum():
    facts = Facts()
    facts.on(step(1, n_samples=100, lag_mean=0.0, lag_max=0))
    facts.on(step(2, n_samples=300, lag_mean=2.0, lag_max=4))
    assert facts.lag.mean == pytest.approx(1.5)
    assert facts.lag.most == 4


def test_before_and_after_prefer_full_evaluations():
    facts = Facts()
    for version, full in ((0, True), (10, False), (20, True), (30, False)):
        facts.on(evaluation("sums", version, version / 100, 0.5, full=full))
    domain = facts.domain("sums")
    assert (domain.before().version, domain.after().version, domain.newest().version) == (0, 20, 30)


def test_the_waiting_share_is_none_until_an_actor_has_said_it():
    facts = Facts()
    assert facts.waiting_share("learner") is None
    facts.on(beat("learner-0", counters={"waiting_s": 30, "busy_s": 10}))
    assert facts.waiting_share("learner") == 0.75


STATUSES = st.sampled_from([OutcomeStatus.TRAINED, OutcomeStatus.DROPPED, OutcomeStatus.DEAD])


@given(
    ends=st.lists(st.tuples(st.integers(0, 20), STATUSES), max_size=60), repeats=st.integers(0, 30), seed=st.integers()
)
def test_every_group_is_counted_once_whatever_is_repeated(ends, repeats, seed):
    first = {f"g{group}": status for group, status in reversed(ends)}
    records = [outcome(group, "d", status) for group, status in first.items()]
    rng = random.Random(seed)
    facts = Facts()
    for record in records + [rng.choice(records) for _ in range(repeats if records else 0)]:
        facts.on(record)
    domain = facts.domain("d")
    assert domain.trained + domain.dropped.total() + domain.dead == 16 * len(first)


def test_a_replayed_group_is_open_again_and_can_end_otherwise():
    facts = Facts()
    facts.on(outcome("g", "d", OutcomeStatus.DEAD))
    assert facts.domain("d").dead == 16
    facts.on(outcome("g", "d", OutcomeStatus.REPLAYED))
    assert facts.domain("d").dead == 0
    facts.on(outcome("g", "d", OutcomeStatus.TRAINED))
    assert facts.domain("d").trained == 16


BOOKS = {"dispatched": 100, "trained": 32, "dropped": 16, "dropped_stale": 16, "dead": 0, "open": 52}


def test_the_books_close_exactly_when_the_law_holds():
    facts = Facts()
    facts.on(beat("curriculum-0", gauges=BOOKS))
    assert booked(facts).closes
    facts.on(beat("curriculum-0", gauges={**BOOKS, "open": 51}, sent_s=NOW_S + 1))
    assert not booked(facts).closes


def test_a_drop_that_no_reason_explains_is_shown():
    facts = Facts()
    facts.on(beat("curriculum-0", gauges={**BOOKS, "dropped_stale": 10}))
    assert booked(facts).dropped["unexplained"] == 6


def test_outcomes_after_the_last_books_are_no_longer_open():
    facts = Facts()
    facts.on(beat("curriculum-0", gauges=BOOKS))
    for number in range(4):
        facts.on(outcome(f"t{number}", "d"))
    facts.on(outcome("s", "d", OutcomeStatus.DROPPED, reason=DropReason.STALE))
    ledger = current(facts)
    assert (ledger.trained, ledger.dropped_total, ledger.open, ledger.closes) == (64, 16, 20, True)


def test_books_newer_than_the_outcomes_that_were_read_stand():
    facts = Facts()
    facts.on(beat("curriculum-0", gauges=BOOKS))
    facts.on(outcome("t", "d"))
    assert current(facts) == booked(facts)


def test_without_books_there_is_no_ledger():
    assert booked(Facts()) is None
    assert current(Facts()) is None
