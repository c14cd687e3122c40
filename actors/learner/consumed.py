"""What the learner has trained, and what it may still train: the last check before a gradient. Pure.

A group enters at most one surviving step (what was trained is saved in the same checkpoint as the weights); nothing is
trained whose oldest token lags too far behind; nothing is trained that was sampled by weights which a restart from an
older checkpoint has undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from messages import DropReason, Experience

KEPT_GROUPS = 100_000


@dataclass
class Consumed:
    """The learner's memory of groups and epochs.

    Attributes:
        groups: ids of trained groups, oldest first; the newest ``KEPT_GROUPS`` are kept.
        forks: epoch to the version at which the next epoch took over; later versions of it are undone.
    """

    groups: dict[str, None] = field(default_factory=dict)
    forks: dict[int, int] = field(default_factory=dict)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self.groups

    def add(self, group_ids: Iterable[str]) -> None:
        """These groups have been trained."""
        self.groups.update(dict.fromkeys(group_ids))
        while len(self.groups) > KEPT_GROUPS:
            del self.groups[next(iter(self.groups))]

    def refusal(self, group: Sequence[Experience], version: int, max_lag: int) -> DropReason | None:
        """Why a group must not be trained on ``version``, or None when it may."""
        if any(self._undone(experience) or experience.rollout.newest_version > version for experience in group):
            return DropReason.ORPHANED  # sampled by weights that are not, or not any more, in this one's past
        if version - min(experience.rollout.oldest_version for experience in group) > max_lag:
            return DropReason.STALE
        if not any(experience.rollout.loss_mask.any() for experience in group):
            return DropReason.EMPTY
        return None

    def _undone(self, experience: Experience) -> bool:
        rollout = experience.rollout
        return any(rollout.epoch <= epoch and rollout.newest_version > version for epoch, version in self.forks.items())

    def enter_epoch(self, epoch: int, version: int) -> None:
        """A learner starts epoch ``epoch`` at ``version``: what earlier epochs made after it is undone."""
        for earlier in range(epoch):
            self.forks[earlier] = min(version, self.forks.get(earlier, version))

    def to_json(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"groups": list(self.groups), "forks": {str(epoch): at for epoch, at in self.forks.items()}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Consumed:
        """The inverse of :meth:`to_json`."""
        return cls(dict.fromkeys(data["groups"]), {int(epoch): at for epoch, at in data["forks"].items()})
