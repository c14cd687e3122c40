"""The advantage of each sample of a group over its peers. Pure numpy, float64.

A group whose rewards are all equal says nothing about which sample is better: it has no signal, exactly 0 for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Estimator = Literal["grpo", "dr_grpo", "rloo"]
Floats = npt.NDArray[np.float64]

GRPO_EPSILON = 1e-6


class RewardsError(ValueError):
    """Rewards that are no group: empty, of another shape, or not finite."""


def has_signal(rewards: Sequence[float] | Floats) -> bool:
    """Return whether a group's rewards differ, so that something can be learnt from it.

    Raises:
        RewardsError: no rewards, or one that is not finite.
    """
    values = _checked(rewards)
    return bool((values != values[0]).any())


def grpo(rewards: Sequence[float] | Floats) -> Floats:
    """Return (r - mean) / (std + 1e-6) with the unbiased std, shape (n,) (Shao et al. 2024, eq. 21).

    Raises:
        RewardsError: no rewards, or one that is not finite.
    """
    values = _checked(rewards)
    if not has_signal(values):
        return np.zeros_like(values)
    advantages: Floats = (values - values.mean()) / (values.std(ddof=1) + GRPO_EPSILON)
    return advantages


def dr_grpo(rewards: Sequence[float] | Floats) -> Floats:
    """Return r - mean, shape (n,) (Liu et al. 2025: no division by the std).

    Raises:
        RewardsError: no rewards, or one that is not finite.
    """
    values = _checked(rewards)
    if not has_signal(values):
        return np.zeros_like(values)
    advantages: Floats = values - values.mean()
    return advantages


def rloo(rewards: Sequence[float] | Floats) -> Floats:
    """Return r_i minus the mean of the others, shape (n,) (Ahmadian et al. 2024, eq. 8).

    Raises:
        RewardsError: no rewards, or one that is not finite.
    """
    values = _checked(rewards)
    if not has_signal(values):
        return np.zeros_like(values)
    advantages: Floats = values - (values.sum() - values) / (values.size - 1)
    return advantages


ESTIMATORS: dict[Estimator, Callable[[Sequence[float] | Floats], Floats]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
}


def _checked(rewards: Sequence[float] | Floats) -> Floats:
    values = np.asarray(rewards, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise RewardsError(f"rewards of shape {values.shape}: a group has one reward per sample, at least one")
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise RewardsError(f"rewards[{at}] is {values[at]}: a reward must be finite")
    return values
