"""When a process that ended is started again, and when the run is given up. Pure: it is told time and exit code.

Exit code 0 is a process that was told to end; 2 is bad input, which a restart can not put right; anything else is a
crash. Too many crashes in too short a time are a crash loop: it is never retried in silence.
"""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass, field

from runtime.backoff import Backoff

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2


@dataclass(frozen=True)
class Ended:
    """The process did what it was told; nothing is to be done."""


@dataclass(frozen=True)
class Restart:
    """Start it again after ``after_s`` seconds."""

    after_s: float


@dataclass(frozen=True)
class GiveUp:
    """The run can not go on: ``exit_code`` is what the launcher ends with, ``why`` says it in one line."""

    exit_code: int
    why: str


Decision = Ended | Restart | GiveUp


@dataclass
class Restarts:
    """The history of one process and the decision after each end.

    Args:
        name: of the process, for messages.
        windows: so many crashes within so many seconds are a crash loop; a quick one and a slow one.
        backoff: delay before a restart, by the number of recent crashes.
        rng: source of the delay's jitter.
    """

    name: str
    windows: tuple[tuple[int, float], ...] = ((5, 60.0), (12, 900.0))
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=0.25, most_s=10.0))
    rng: random.Random = field(default_factory=random.Random)
    crashes: list[float] = field(default_factory=list)

    def ended(self, code: int, now_s: float, last_words: str = "") -> Decision:
        """Decide. ``code`` is the exit code, negative for a signal; ``now_s`` is monotonic."""
        if code == EXIT_DONE:
            return Ended()
        if code == EXIT_BAD_INPUT:
            return GiveUp(EXIT_BAD_INPUT, f"{self.name}: {last_words or 'bad input, see its log'}")
        longest_s = max(within_s for _, within_s in self.windows)
        self.crashes = [*(at for at in self.crashes if now_s - at < longest_s), now_s]
        for limit, within_s in self.windows:
            if self._recent(now_s, within_s) >= limit:
                return GiveUp(EXIT_FAILED, self._loop(limit, within_s, code, last_words))
        shortest_s = min(within_s for _, within_s in self.windows)
        return Restart(self.backoff.delay_s(self._recent(now_s, shortest_s), self.rng))

    def _recent(self, now_s: float, within_s: float) -> int:
        return sum(now_s - at < within_s for at in self.crashes)

    def _loop(self, limit: int, within_s: float, code: int, last_words: str) -> str:
        said = f": {last_words}" if last_words else ""
        return (
            f"{self.name} is in a crash loop ({limit} crashes within {within_s:.0f} s, last {how_it_ended(code)}){said}"
        )


def how_it_ended(code: int) -> str:
    """An exit code in words: ``exit code 3``, ``killed by SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
