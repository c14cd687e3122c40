"""Bands of rows: a partition, wide enough, and worth their while."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.policy.bands import Band, arrange, split

lengths_drawn = st.lists(st.integers(1, 300), min_size=1, max_size=70).map(lambda x: np.array(x, np.int64))


@settings(deadline=None)
@given(lengths=lengths_drawn, grain=st.integers(1, 4000))
def test_bands_partition_the_rows_and_cover_each_of_them_after_the_moves(lengths, grain):
    bands, sources, targets = arrange(lengths, grain)
    assert sorted(sources) == sorted(targets)
    moved = lengths.copy()
    moved[targets] = lengths[sources]
    assert [b.start for b in bands] == [0, *(b.stop for b in bands[:-1])]
    assert bands[-1].stop == len(lengths)
    for band in bands:
        assert band.width == moved[band.start : band.stop].max()


@settings(deadline=None)
@given(lengths=lengths_drawn, grain=st.integers(1, 4000))
def test_every_cut_saves_at_least_a_grain(lengths, grain):
    ordered = -np.sort(-lengths)
    cuts = split(ordered, grain)
    work = sum((b - a) * ordered[a] for a, b in pairwise(cuts))
    assert work <= len(ordered) * ordered[0] - grain * (len(cuts) - 2)


def test_one_long_row_among_short_ones_gets_a_band_of_its_own():
    lengths = np.full(32, 10)
    lengths[20] = 500
    bands, sources, targets = arrange(lengths, 512)
    assert bands == [Band(0, 1, 500), Band(1, 32, 10)]
    assert (sources.tolist(), targets.tolist()) == ([20, 0], [0, 20])


def test_equal_rows_are_one_band():
    assert arrange(np.full(64, 40), 1)[0] == [Band(0, 64, 40)]


def test_rows_stay_where_they_are_when_moving_them_costs_more_than_it_saves():
    # Ranked 62, 61, 60, ...: the 61 among the last would save one column in 15 rows, for two copies of some 60 columns.
    lengths = np.array([900] + [60] * 15)
    lengths[15] = 61
    bands, sources, _ = arrange(lengths, 100)
    assert len(sources) == 0
    assert bands == [Band(0, 1, 900), Band(1, 16, 61)]
