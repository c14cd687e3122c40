"""The ledger: what became of every group that was dispatched. It keeps the law of conservation by construction.

dispatched = trained + dropped(reason) + dead + open, at any time: a group is in exactly one of them, closing one twice
changes nothing, and only a replayed dead letter opens one again.

Delivery is at least once: a server that was killed has forgotten which consumed work it had seen, so a group may be
sampled twice and come to two ends. Trained outranks dropped and dead, whichever is told first: the weights know it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from messages import DropReason, Outcome, OutcomeStatus

REMEMBERED_DROPS = 1024
"""Dropped groups that a training which is told later can still take back."""


@dataclass(frozen=True)
class Dispatch:
    """One dispatched group."""

    group_id: str
    task_seq: int
    domain: str
    n: int
    epoch: int
    version: int


@dataclass
class Ledger:
    """Counts are of samples; ``open`` and ``dead`` hold the groups themselves."""

    prefix: str
    next_number: int = 1
    open: dict[str, Dispatch] = field(default_factory=dict)
    in_training: set[str] = field(default_factory=set)
    """Open groups of a batch that was reported, while the checkpoint that makes its step final is still to come."""
    dead: dict[str, Dispatch] = field(default_factory=dict)
    intents: set[str] = field(default_factory=set)
    """Open groups whose turn may not have been published when this was saved; publishing again is harmless."""
    dispatched: int = 0
    trained: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    drops: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The newest dropped groups: reason and samples."""
    late: int = 0
    """Outcomes of groups that were closed already: repeats, which change nothing."""

    def dispatch(self, task_seq: int, domain: str, n: int, epoch: int, version: int) -> Dispatch:
        """Open a new group of ``n`` samples, admitted at a version of an epoch."""
        entry = Dispatch(f"{self.prefix}-{self.next_number}", task_seq, domain, n, epoch, version)
        self.next_number += 1
        self.open[entry.group_id] = entry
        self.intents.add(entry.group_id)
        self.dispatched += n
        return entry

    def published(self, group_ids: Iterable[str]) -> None:
        """The turns of these groups are stored on the bus."""
        self.intents.difference_update(group_ids)

    def consumed(self, group_ids: Iterable[str]) -> None:
        """A step has trained or refused these groups; they leave the pipeline and await their outcome."""
        self.in_training.update(group_id for group_id in group_ids if group_id in self.open)

    def rolled_back(self) -> None:
        """The learner came back from a checkpoint: what later steps had consumed is in the pipeline again."""
        self.in_training.clear()

    def apply(self, outcome: Outcome) -> bool:
        """Take an outcome; returns whether it changed anything."""
        if outcome.status is OutcomeStatus.REPLAYED:
            return self._reopen(outcome.group_id)
        entry = self._close(outcome.group_id)
        if outcome.status is OutcomeStatus.TRAINED:
            n = self._take_back(outcome.group_id) if entry is None else entry.n
            self.trained += n
            self.late += n == 0
            return n > 0
        if entry is None:
            self.late += 1
            return False
        if outcome.status is OutcomeStatus.DROPPED:
            self._drop(entry, (outcome.reason or DropReason.EMPTY).value)
        else:
            self.dead[entry.group_id] = entry
        return True

    def _drop(self, entry: Dispatch, reason: str) -> None:
        self.dropped[reason] += entry.n
        self.drops[entry.group_id] = (reason, entry.n)
        while len(self.drops) > REMEMBERED_DROPS:
            del self.drops[next(iter(self.drops))]

    def _take_back(self, group_id: str) -> int:
        """Undo the other end of a group that has been trained; returns its samples, 0 when there was none."""
        dead = self.dead.pop(group_id, None)
        if dead is not None:
            return dead.n
        reason, n = self.drops.pop(group_id, ("", 0))
        if n:
            self.dropped[reason] -= n
            self.dropped += Counter()  # forgets reasons that are back at 0
        return n

    def died(self, group_ids: Iterable[str]) -> None:
        """A message that carried these groups became a dead letter."""
        for group_id in group_ids:
            entry = self._close(group_id)
            if entry is not None:
                self.dead[group_id] = entry

    def _close(self, group_id: str) -> Dispatch | None:
        self.in_training.discard(group_id)
        self.intents.discard(group_id)
        return self.open.pop(group_id, None)

    def _reopen(self, group_id: str) -> bool:
        entry = self.dead.pop(group_id, None)
        if entry is None:
            return False
        self.open[group_id] = entry
        return True

    @property
    def pipeline(self) -> int:
        """Groups between dispatch and their step."""
        return len(self.open) - len(self.in_training)

    def figures(self) -> dict[str, float]:
        """The law's terms, in samples."""
        return {
            "dispatched": self.dispatched,
            "trained": self.trained,
            "dropped": self.dropped.total(),
            "dead": sum(entry.n for entry in self.dead.values()),
            "open": sum(entry.n for entry in self.open.values()),
            **{f"dropped_{reason}": n for reason, n in self.dropped.items()},
        }

    def law_closes(self) -> bool:
        """Whether dispatched = trained + dropped + dead + open."""
        f = self.figures()
        return f["dispatched"] == f["trained"] + f["dropped"] + f["dead"] + f["open"]

    def to_json(self) -> dict[str, Any]:
        """What a restart needs, as plain data."""
        return {
            "prefix": self.prefix,
            "next_number": self.next_number,
            "open": [_row(entry) for entry in self.open.values()],
            "dead": [_row(entry) for entry in self.dead.values()],
            "in_training": sorted(self.in_training),
            "intents": sorted(self.intents),
            "dispatched": self.dispatched,
            "trained": self.trained,
            "dropped": dict(self.dropped),
            "drops": self.drops,
            "late": self.late,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Ledger:
        """The inverse of :meth:`to_json`."""
        return cls(
            prefix=data["prefix"],
            next_number=data["next_number"],
            open={row[0]: Dispatch(*row) for row in data["open"]},
            dead={row[0]: Dispatch(*row) for row in data["dead"]},
            in_training=set(data["in_training"]),
            intents=set(data["intents"]),
            dispatched=data["dispatched"],
            trained=data["trained"],
            dropped=Counter(data["dropped"]),
            drops={group_id: (reason, n) for group_id, (reason, n) in data["drops"].items()},
            late=data["late"],
        )


def _row(entry: Dispatch) -> list[Any]:
    return [entry.group_id, entry.task_seq, entry.domain, entry.n, entry.epoch, entry.version]
