"""The law of conservation: dispatched = trained + dropped(reason) + dead + open, in samples, exactly, at any time.

The curriculum dispatches and keeps the books; they travel in its heartbeat and are read here for people to see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
