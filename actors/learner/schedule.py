"""Learning rate as a function of the step: warm-up, then constant, linear or cosine. Pure, free of torch."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate(step: int, peak: float, schedule: Schedule, warmup_steps: int, total_steps: int | None) -> float:
    """Return the rate of optimiser step ``step`` (0 is the first).

    It rises linearly and reaches ``peak`` at step ``warmup_steps``; a decay ends at 0 at ``total_steps`` and stays
    there. ``constant`` needs no ``total_steps``.

    Raises:
        ValueError: a decay without ``total_steps``.
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return peak
    if total_steps is None:
        raise ValueError(f"schedule {schedule} needs total_steps: the step at which the rate reaches 0")
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    if schedule == "linear":
        return peak * (1.0 - progress)
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
