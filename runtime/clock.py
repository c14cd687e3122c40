"""Time, injected: every policy takes a clock, so that it is tested without a sleep."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two kinds of time: for people (Unix seconds) and for durations (monotonic seconds)."""

    def now(self) -> float:
        """Unix time in seconds."""

    def monotonic(self) -> float:
        """Seconds that never go back."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Unix time in seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()
