"""How long to wait before trying again: exponential, bounded, jittered. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Delays that double from ``first_s`` to ``most_s``, each drawn from its upper half so that peers spread out."""

    first_s: float = 0.05
    most_s: float = 5.0

    def delay_s(self, attempt: int, rng: random.Random) -> float:
        """Seconds to wait after failed attempt number ``attempt`` (1, 2, ...)."""
        whole = min(self.most_s, self.first_s * 2.0 ** min(attempt - 1, 30))
        return whole * (0.5 + 0.5 * rng.random())
