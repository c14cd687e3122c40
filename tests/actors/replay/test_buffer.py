"""The replay buffer: bounded, oldest weights first, nothing over the lag, in once and out once."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from actors.replay.buffer import Buffer, Group
from tests.actors.samples import experiences


def group(name: str, *oldest: int) -> Group:
    """A group whose samples' oldest tokens are of these versions."""
    parts = [
        experiences(name, len(oldest), versions=(version, version + 1))[i] for i, version in enumerate(oldest)
    ]  # fmt: skip
    return Group(name, tuple(parts))


class BufferMachine(RuleBasedStateMachine):
    """Any sequence of arrivals, versions, sweeps and batches."""

    @initialize(most=st.integers(1, 8), size=st.integers(1, 8), lag=st.integers(0, 3))
    def made(self, most: int, size: int, lag: int) -> None:
        self.most, self.size, self.lag = max(most, size), size, lag
        self.buffer = Buffer(max_groups=self.most, groups_per_batch=size, max_lag=lag)
        self.version = 0
        self.n = 0
        self.held: dict[str, Group] = {}

    @rule(back=st.integers(0, 4))
    def arrives(self, back: int) -> None:
        self.n += 1
        new = group(f"g{self.n}", max(0, self.version - back), self.version)
        evicted = self.buffer.add(new)
        assert (evicted is not None) is (len(self.held) == self.most)
        if evicted is not None:
            assert evicted.oldest_version == min(held.oldest_version for held in self.held.values())
            del self.held[evicted.group_id]
        self.held[new.group_id] = new

    @rule(steps=st.integers(1, 3))
    def time_goes_on(self, steps: int) -> None:
        self.version += steps

    @rule()
    def sweeps(self) -> None:
        swept = {stale.group_id for stale in self.buffer.sweep(self.version)}
        assert swept == {name for name, held in self.held.items() if self.version - held.oldest_version > self.lag}
        for name in swept:
            del self.held[name]

    @rule()
    def composes(self) -> None:
        chosen = self.buffer.compose(self.version)
        fresh = [held for held in self.held.values() if self.version - held.oldest_version <= self.lag]
        if chosen is None:
            assert len(fresh) < self.size
            return
        assert len({taken.group_id for taken in chosen}) == len(chosen) == self.size
        assert all(taken in fresh for taken in chosen)
        left = [held.oldest_version for held in fresh if held not in chosen]
        assert not left or max(taken.oldest_version for taken in chosen) <= min(left)
        for taken in chosen:
            del self.held[taken.group_id]

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        if hasattr(self, "buffer"):
            assert [held.group_id for held in self.buffer.groups()] == list(self.held)
            assert len(self.buffer) <= self.most
            assert all(name in self.buffer for name in self.held)


TestBuffer = BufferMachine.TestCase
TestBuffer.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_a_group_is_as_old_as_its_oldest_token() -> None:
    assert group("g", 5, 3, 4).oldest_version == 3
    assert group("g", 5, 3, 4).lag(6) == 3


def test_a_batch_has_whole_groups() -> None:
    buffer = Buffer(max_groups=4, groups_per_batch=2, max_lag=0)
    buffer.add(group("a", 0, 0))
    buffer.add(group("b", 0, 0, 0))
    chosen = buffer.compose(0)
    assert chosen is not None
    assert [len(taken.experiences) for taken in chosen] == [2, 3]


def test_a_buffer_that_can_never_make_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="3 groups can not make a batch of 4"):
        Buffer(max_groups=3, groups_per_batch=4, max_lag=0)
