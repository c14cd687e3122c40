"""Which rows attend together, so that short sequences do not pay for the longest one.

Promise: bands partition the rows, and a band's width covers each of its rows. With few rows of very different lengths
one band is cheapest; with many, the long ones go first, in bands of their own. Pure functions over the rows' lengths.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_MAX_BANDS = 4
_HORIZON_STEPS = 8


class Band(NamedTuple):
    """Rows start..stop-1, none longer than width."""

    start: int
    stop: int
    width: int


def split(lengths: npt.NDArray[np.int64], grain: int) -> list[int]:
    """Where to cut rows of descending lengths [n] into bands: starts and the end, [0, ..., n].

    grain: row-columns of attention that a further band must save. Greedy: the cut that saves most, thrice.
    """
    cuts = [0, len(lengths)]
    while len(cuts) <= _MAX_BANDS:
        best, where = grain, None
        for a, b in pairwise(cuts):
            saved = np.arange(b - a, 0, -1) * (lengths[a] - lengths[a:b])
            at = int(saved.argmax())
            if saved[at] > best:
                best, where = int(saved[at]), a + at
        if where is None:
            break
        cuts = sorted([*cuts, where])
    return cuts


def arrange(
    lengths: npt.NDArray[np.int64], grain: int
) -> tuple[list[Band], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Choose bands for rows of any order, and the row moves (sources, targets) that they take.

    The moves permute rows among themselves; they are left out (empty) where they would cost more copying than the
    narrower bands save within some steps.
    """
    n = len(lengths)
    none = np.zeros(0, np.intp)
    order = np.argsort(-lengths, kind="stable")
    cuts = split(lengths[order], grain)
    if len(cuts) == 2:
        return [Band(0, n, int(lengths.max()))], none, none
    sizes = np.diff(cuts)
    here = np.repeat(np.arange(len(sizes)), sizes)
    wanted = np.empty(n, np.int64)
    wanted[order] = here
    misplaced = np.flatnonzero(here != wanted)
    best = lengths[order][cuts[:-1]]
    actual = np.maximum.reduceat(lengths, cuts[:-1])
    if int((sizes * (actual - best)).sum()) * _HORIZON_STEPS <= 3 * int(lengths[misplaced].sum()):
        return _bands(cuts, actual), none, none
    targets = misplaced[np.argsort(here[misplaced], kind="stable")]
    sources = misplaced[np.argsort(wanted[misplaced], kind="stable")]
    return _bands(cuts, best), sources, targets


def _bands(cuts: list[int], widths: npt.NDArray[np.int64]) -> list[Band]:
    return [Band(a, b, int(w)) for a, b, w in zip(cuts, cuts[1:], widths, strict=False)]
