"""The law of conservation: dispatched = trained + dropped(reason) + dead + open, in samples, exactly, at any time.

The curriculum dispatches and keeps the books; they travel in its heartbeat. Outcomes that came after its last beat (it
is drained first) are no longer open, and are counted from the outcomes themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from messages import OutcomeStatus
from runtime.facts import Facts

REASON_PREFIX = "dropped_"


@dataclass(frozen=True)
class Ledger:
    """Samples by what became of them."""

    dispatched: int = 0
    trained: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    dead: int = 0
    open: int = 0

    @property
    def dropped_total(self) -> int:
        """Dropped for any reason."""
        return sum(self.dropped.values())

    @property
    def closes(self) -> bool:
        """Whether the law holds."""
        ended = self.trained + self.dropped_total + self.dead
        return self.open >= 0 and self.dispatched == ended + self.open


def booked(facts: Facts) -> Ledger | None:
    """The curriculum's books as of its last heartbeat; None before the first that has them."""
    for actor in facts.of_kind("curriculum"):
        gauges = actor.beat.gauges
        if "dispatched" in gauges:
            reasons = {
                name.removeprefix(REASON_PREFIX): int(value)
                for name, value in gauges.items()
                if name.startswith(REASON_PREFIX) and value
            }
            if sum(reasons.values()) != int(gauges.get("dropped", 0)):
                reasons["unexplained"] = int(gauges.get("dropped", 0)) - sum(reasons.values())
            return Ledger(
                int(gauges["dispatched"]),
                int(gauges.get("trained", 0)),
                reasons,
                int(gauges.get("dead", 0)),
                int(gauges.get("open", 0)),
            )
    return None


def current(facts: Facts) -> Ledger | None:
    """The books with the outcomes that came after the curriculum's last heartbeat; None when there are no books.

    Books that are newer than the outcomes that were read stand as they are.
    """
    books = booked(facts)
    if books is None or not books.closes:
        return books
    ended = Counter[str]()
    dropped = Counter[str]()
    for outcome in facts.outcomes.values():
        ended[outcome.status.value] += outcome.n_samples
        if outcome.reason is not None:
            dropped[outcome.reason.value] += outcome.n_samples
    trained = ended[OutcomeStatus.TRAINED.value]
    dead = max(books.dead, ended[OutcomeStatus.DEAD.value])
    still_open = books.dispatched - trained - dropped.total() - dead
    if trained < books.trained or dropped.total() < books.dropped_total or still_open < 0:
        return books
    return Ledger(books.dispatched, trained, dict(dropped), dead, still_open)
