"""The replay buffer: which groups wait, which are too old, which make the next batch. Pure: no bus, no clock.

What it promises: it never holds more than ``max_groups``; a batch has exactly ``groups_per_batch`` groups, the oldest
weights first, and none whose oldest token lags more than ``max_lag`` behind the version it is composed for; a group
goes in once and comes out once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from messages import Experience


@dataclass(frozen=True)
class Group:
    """The experiences of one group, aged as a unit."""

    group_id: str
    experiences: tuple[Experience, ...]
    traceparent: str = ""
    oldest_version: int = field(init=False)

    def __post_init__(self) -> None:
        oldest = min(experience.rollout.oldest_version for experience in self.experiences)
        object.__setattr__(self, "oldest_version", oldest)

    def lag(self, version: int) -> int:
        """Versions that its oldest token would be behind if it were trained on ``version``."""
        return version - self.oldest_version


class Buffer:
    """Groups that wait for a batch."""

    def __init__(self, *, max_groups: int, groups_per_batch: int, max_lag: int) -> None:
        if max_groups < groups_per_batch:
            raise ValueError(f"a buffer of {max_groups} groups can not make a batch of {groups_per_batch}")
        self._max_groups = max_groups
        self._groups_per_batch = groups_per_batch
        self._max_lag = max_lag
        self._groups: dict[str, Group] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def groups(self) -> Sequence[Group]:
        """What waits, in order of arrival."""
        return list(self._groups.values())

    def add(self, group: Group) -> Group | None:
        """Take a group in; returns the one that had to give way (the oldest weights), if the buffer was full."""
        evicted = None
        if len(self._groups) >= self._max_groups:
            evicted = min(self._groups.values(), key=lambda held: held.oldest_version)
            del self._groups[evicted.group_id]
        self._groups[group.group_id] = group
        return evicted

    def sweep(self, version: int) -> list[Group]:
        """Remove and return what is too old to be trained on ``version``."""
        stale = [group for group in self._groups.values() if group.lag(version) > self._max_lag]
        for group in stale:
            del self._groups[group.group_id]
        return stale

    def compose(self, version: int) -> list[Group] | None:
        """Remove and return a batch for ``version``, or None while there are too few groups. Sweep first."""
        fresh = [group for group in self._groups.values() if group.lag(version) <= self._max_lag]
        if len(fresh) < self._groups_per_batch:
            return None
        chosen = sorted(fresh, key=lambda group: group.oldest_version)[: self._groups_per_batch]
        for group in chosen:
            del self._groups[group.group_id]
        return chosen
