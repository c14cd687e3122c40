"""Admission: how many groups may start now so that nothing gets older than the lag bound. Pure."""

from __future__ import annotations


def admissible(
    *, max_concurrent: int, groups_per_batch: int, max_lag: int, version: int, running: int, accepted: int
) -> int:
    """Groups that may start now (AReaL, arXiv:2505.24298, equation 3, counted in groups).

    Args:
        max_concurrent: bound on what runs, whatever the lag.
        groups_per_batch: B, groups that one optimiser step eats.
        max_lag: eta, versions that a trained token may be old.
        version: current weight version.
        running: groups started and not yet trained, dropped or accepted.
        accepted: groups accepted so far; ``version * B`` of them are trained.

    Returns:
        min(max_concurrent - running, (eta + version + 1) B - (accepted + running)), at least 0.
    """
    room = max_concurrent - running
    fresh = (max_lag + version + 1) * groups_per_batch - (accepted + running)
    return max(0, min(room, fresh))
