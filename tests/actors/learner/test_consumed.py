"""What the learner may still train: no group twice over surviving steps, none too old, none that was undone."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from actors.learner import consumed as module
from actors.learner.consumed import Consumed
from messages import DropReason
from tests.actors.samples import experiences

MAX_LAG = 2


class LearnerLives(RuleBasedStateMachine):
    """A learner that trains, saves and dies at any time, and groups that come back at any time.

    The model remembers which steps survive: those up to the version that each later life started from.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epoch, self.version = 1, 0
        self.consumed = Consumed()
        self.consumed.enter_epoch(1, 0)
        self.saved = (0, json.dumps(self.consumed.to_json()))
        self.surviving: dict[int, list[str]] = {}
        self.alive: set[tuple[int, int]] = {(1, 0)}
        """(epoch, version) of all weights that the present ones come from."""
        self.seen: list[tuple[str, int, int]] = []
        self.n = 0

    @rule(back=st.integers(0, 5))
    def a_new_group_comes(self, back: int) -> None:
        self.n += 1
        newest_first = sorted(self.alive, key=lambda at: (at[1], at[0]), reverse=True)
        self._offer(f"g{self.n}", *newest_first[back % len(newest_first)])

    @rule(at=st.integers(0, 1000))
    def comes_again(self, at: int) -> None:
        if self.seen:
            self._offer(*self.seen[at % len(self.seen)])

    def _offer(self, group_id: str, epoch: int, version: int) -> None:
        self.seen.append((group_id, epoch, version))
        if group_id in self.consumed:
            return
        group = experiences(group_id, versions=(version,), epoch=epoch)
        reason = self.consumed.refusal(group, self.version, MAX_LAG)
        undone = (epoch, version) not in self.alive
        if reason is None:
            assert not undone
            assert 0 <= self.version - version <= MAX_LAG
            assert all(group_id not in trained for trained in self.surviving.values()), "trained twice"
            self.version += 1
            self.alive.add((self.epoch, self.version))
            self.consumed.add([group_id])
            self.surviving[self.version] = [group_id]
        elif not undone:
            assert reason is DropReason.STALE
            assert self.version - version > MAX_LAG

    @rule()
    def saves(self) -> None:
        self.saved = (self.version, json.dumps(self.consumed.to_json()))

    @rule()
    def dies(self) -> None:
        self.version, state = self.saved
        self.consumed = Consumed.from_json(json.loads(state))
        self.surviving = {v: groups for v, groups in self.surviving.items() if v <= self.version}
        self.alive = {at for at in self.alive if at[1] <= self.version}
        self.epoch += 1
        self.consumed.enter_epoch(self.epoch, self.version)
        self.alive.add((self.epoch, self.version))


TestLearnerLives = LearnerLives.TestCase
TestLearnerLives.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.integers(0, 25), st.integers(0, 4))
def test_a_group_is_refused_as_stale_exactly_when_its_oldest_token_is_too_old(
    versions: list[int], version: int, max_lag: int
) -> None:
    version = max(version, *versions)
    group = experiences("g", versions=versions)
    expected = DropReason.STALE if version - min(versions) > max_lag else None
    assert Consumed().refusal(group, version, max_lag) is expected


def test_one_old_sample_makes_the_whole_group_stale() -> None:
    group = [experiences("g", versions=(9,))[0], experiences("g", versions=(9, 5))[1]]
    assert Consumed().refusal(group, 9, 2) is DropReason.STALE


def test_what_was_sampled_by_undone_weights_is_orphaned_and_what_came_before_the_fork_is_not() -> None:
    known = Consumed()
    known.enter_epoch(2, 5)
    assert known.refusal(experiences("g", versions=(4, 6), epoch=1), 5, 9) is DropReason.ORPHANED
    assert known.refusal(experiences("g", versions=(4, 5), epoch=1), 5, 9) is None
    assert known.refusal(experiences("g", versions=(6,), epoch=2), 6, 9) is None


def test_a_sample_that_spans_a_restart_is_judged_by_its_older_epoch() -> None:
    known = Consumed()
    known.enter_epoch(2, 5)
    assert known.refusal(experiences("g", versions=(8, 5), epoch=1), 5, 9) is DropReason.ORPHANED


def test_a_later_fork_does_not_give_back_what_an_earlier_one_undid() -> None:
    known = Consumed()
    known.enter_epoch(2, 5)
    known.enter_epoch(3, 12)
    assert known.refusal(experiences("g", versions=(8,), epoch=1), 12, 9) is DropReason.ORPHANED
    assert known.refusal(experiences("g", versions=(8,), epoch=2), 12, 9) is None


def test_a_group_without_a_trained_token_is_empty() -> None:
    group = experiences("g", loss_mask=[0, 0, 0])
    assert Consumed().refusal(group, 0, 2) is DropReason.EMPTY


def test_memory_is_bounded_and_forgets_the_oldest(monkeypatch) -> None:
    monkeypatch.setattr(module, "KEPT_GROUPS", 3)
    known = Consumed()
    known.add(["a", "b", "c", "d"])
    assert ["a" in known, *(name in known for name in "bcd")] == [False, True, True, True]


def test_weights_that_are_still_to_come_can_have_sampled_nothing() -> None:
    group = experiences("a", versions=(1, 2))
    assert Consumed().refusal(group, 2, MAX_LAG) is None
    assert Consumed().refusal(group, 1, MAX_LAG) is DropReason.ORPHANED
