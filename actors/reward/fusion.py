"""Fusion: a verdict's scores become one reward. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from messages import Verdict


class FusionError(ValueError):
    """A verdict from which no reward can be made."""


def fuse(verdict: Verdict, objectives: Mapping[str, float]) -> tuple[float, dict[str, float]]:
    """The reward of a verdict, and the score per objective that went into it.

    Args:
        verdict: one that carries a pass rate.
        objectives: weight per objective; empty means that the pass rate is the reward.

    Returns:
        sum of weight times score over the objectives, and those scores.

    Raises:
        FusionError: an objective has no score in the verdict, or the reward is not finite.
    """
    if verdict.pass_rate is None:
        raise FusionError(f"rollout {verdict.rollout.id}: {verdict.status.value} carries no score")
    if not objectives:
        return verdict.pass_rate, {"pass_rate": verdict.pass_rate}
    missing = [name for name in objectives if name not in verdict.scores]
    if missing:
        known = ", ".join(sorted(verdict.scores)) or "none"
        raise FusionError(f"rollout {verdict.rollout.id}: no score for objective {missing[0]!r}; it has {known}")
    scores = {name: verdict.scores[name] for name in objectives}
    reward = sum(weight * scores[name] for name, weight in objectives.items())
    if not math.isfinite(reward):
        raise FusionError(f"rollout {verdict.rollout.id}: reward {reward} from scores {scores}")
    return reward, scores
