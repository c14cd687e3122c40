"""The ledger: whatever happens in whatever order, the law holds exactly and a group is closed once."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from actors.curriculum import ledger as module
from actors.curriculum.ledger import Ledger
from messages import DropReason, Outcome, OutcomeStatus

TRAINED, DROPPED, DEAD, REPLAYED = OutcomeStatus


def outcome(group_id: str, status: OutcomeStatus, reason: DropReason | None = None, n: int = 4) -> Outcome:
    if status is DROPPED and reason is None:
        reason = DropReason.STALE
    return Outcome(
        group_id=group_id, task_id="t", domain="d", status=status, reason=reason, n_samples=n, actor="learner"
    )


class LedgerMachine(RuleBasedStateMachine):
    """Any sequence of what can happen to groups, beside a model that keeps one word per group."""

    groups = Bundle("groups")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(prefix="p")
        self.fate: dict[str, str] = {}
        self.size: dict[str, int] = {}

    @rule(target=groups, n=st.integers(1, 16), version=st.integers(0, 9))
    def dispatch(self, n: int, version: int) -> str:
        group_id = self.ledger.dispatch(task_seq=1, domain="d", n=n, epoch=1, version=version).group_id
        assert group_id not in self.fate
        self.fate[group_id], self.size[group_id] = "open", n
        return group_id

    @rule(group=groups)
    def trained(self, group: str) -> None:
        """Trained is a fact, whatever was told before."""
        assert self.ledger.apply(outcome(group, TRAINED)) is (self.fate[group] != "trained")
        self.fate[group] = "trained"

    @rule(group=groups, reason=st.sampled_from(DropReason))
    def dropped(self, group: str, reason: DropReason) -> None:
        self._end(group, outcome(group, DROPPED, reason), f"dropped_{reason.value}")

    @rule(group=groups)
    def died_by_outcome(self, group: str) -> None:
        self._end(group, outcome(group, DEAD), "dead")

    def _end(self, group: str, told: Outcome, fate: str) -> None:
        was_open = self.fate[group] == "open"
        assert self.ledger.apply(told) is was_open
        if was_open:
            self.fate[group] = fate

    @rule(some=st.lists(groups, max_size=4))
    def dead_letter(self, some: list[str]) -> None:
        self.ledger.died(some)
        for group in some:
            if self.fate[group] == "open":
                self.fate[group] = "dead"

    @rule(group=groups)
    def replayed(self, group: str) -> None:
        was_dead = self.fate[group] == "dead"
        assert self.ledger.apply(outcome(group, REPLAYED)) is was_dead
        if was_dead:
            self.fate[group] = "open"

    @rule(some=st.lists(groups, max_size=4))
    def stepped(self, some: list[str]) -> None:
        self.ledger.consumed(some)

    @rule(some=st.lists(groups, max_size=4))
    def published(self, some: list[str]) -> None:
        self.ledger.published(some)

    @rule()
    def rolled_back(self) -> None:
        self.ledger.rolled_back()
        assert self.ledger.pipeline == len(self.ledger.open)

    @rule()
    def saved_and_loaded(self) -> None:
        before = self.ledger
        self.ledger = Ledger.from_json(json.loads(json.dumps(before.to_json())))
        assert self.ledger == before

    @rule()
    def strangers_change_nothing(self) -> None:
        figures = self.ledger.figures()
        assert self.ledger.apply(outcome("stranger", TRAINED)) is False
        self.ledger.died(["", "stranger"])
        self.ledger.consumed(["stranger"])
        assert self.ledger.figures() == figures

    @invariant()
    def the_law_closes_and_every_count_is_right(self) -> None:
        counts: Counter[str] = Counter()
        for group, fate in self.fate.items():
            counts[fate] += self.size[group]
        figures: dict[str, Any] = self.ledger.figures()
        assert self.ledger.law_closes()
        assert figures["dispatched"] == sum(self.size.values())
        assert {name: figures[name] for name in ("open", "dead", "trained")} == {
            name: counts[name] for name in ("open", "dead", "trained")
        }
        reasons = {name: n for name, n in counts.items() if name.startswith("dropped_")}
        assert {name: n for name, n in figures.items() if name.startswith("dropped_")} == reasons
        assert figures["dropped"] == sum(reasons.values())

    @invariant()
    def what_is_in_training_or_intended_is_open(self) -> None:
        assert self.ledger.in_training <= set(self.ledger.open)
        assert self.ledger.intents <= set(self.ledger.open)
        assert 0 <= self.ledger.pipeline <= len(self.ledger.open)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_drop_is_forgotten_in_time_so_that_the_saved_state_stays_small(monkeypatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_DROPS", 2)
    ledger = Ledger(prefix="p")
    groups = [ledger.dispatch(1, "d", 4, 1, 0).group_id for _ in range(3)]
    for group in groups:
        ledger.apply(outcome(group, DROPPED))
    assert [ledger.apply(outcome(group, TRAINED)) for group in groups] == [False, True, True]
    assert ledger.figures()["dropped"] == 4
    assert ledger.law_closes()


def test_a_repeated_outcome_is_counted_as_late_and_changes_nothing() -> None:
    ledger = Ledger(prefix="p")
    group = ledger.dispatch(1, "d", 4, 1, 0).group_id
    assert ledger.apply(outcome(group, TRAINED))
    assert not ledger.apply(outcome(group, DROPPED))
    assert (ledger.late, ledger.figures()["trained"], ledger.figures()["dropped"]) == (1, 4, 0)


def test_groups_that_a_step_took_leave_the_pipeline_and_come_back_with_a_rollback() -> None:
    ledger = Ledger(prefix="p")
    groups = [ledger.dispatch(1, "d", 4, 1, 0).group_id for _ in range(3)]
    ledger.consumed(groups[:2])
    assert ledger.pipeline == 1
    ledger.rolled_back()
    assert ledger.pipeline == 3


def test_two_lives_never_give_two_groups_one_id() -> None:
    first = Ledger(prefix="p")
    before = {first.dispatch(1, "d", 4, 1, 0).group_id for _ in range(5)}
    second = Ledger.from_json(first.to_json())
    assert before.isdisjoint({second.dispatch(1, "d", 4, 1, 0).group_id for _ in range(5)})
