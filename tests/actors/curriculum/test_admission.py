"""Admission: the published check values, and what must hold for all numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.curriculum.admission import admissible

SMALL = st.integers(0, 200)


def room(concurrent: int, batch: int, lag: int, version: int, running: int, accepted: int) -> int:
    return admissible(
        max_concurrent=concurrent,
        groups_per_batch=batch,
        max_lag=lag,
        version=version,
        running=running,
        accepted=accepted,
    )


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [((100, 4, 2, 0, 0, 0), 12), ((100, 4, 2, 5, 0, 0), 32), ((20, 4, 2, 0, 0, 5), 7)],
)
def test_the_check_values_come_out(numbers: tuple[int, ...], expected: int) -> None:
    assert room(*numbers) == expected


@given(SMALL, st.integers(1, 64), st.integers(0, 8), SMALL, SMALL, SMALL)
def test_room_is_never_negative_and_never_more_than_may_run(
    concurrent: int, batch: int, lag: int, version: int, running: int, accepted: int
) -> None:
    found = room(concurrent, batch, lag, version, running, accepted)
    assert 0 <= found <= max(0, concurrent - running)


@given(SMALL, st.integers(1, 64), st.integers(0, 8), SMALL, SMALL, SMALL)
def test_more_lag_or_a_newer_version_never_means_less_room(
    concurrent: int, batch: int, lag: int, version: int, running: int, accepted: int
) -> None:
    found = room(concurrent, batch, lag, version, running, accepted)
    assert room(concurrent, batch, lag + 1, version, running, accepted) >= found
    assert room(concurrent, batch, lag, version + 1, running, accepted) >= found


@given(SMALL, st.integers(1, 64), st.integers(0, 8), SMALL, SMALL, SMALL)
def test_what_runs_or_was_accepted_takes_exactly_its_place(
    concurrent: int, batch: int, lag: int, version: int, running: int, accepted: int
) -> None:
    found = room(concurrent, batch, lag, version, running, accepted)
    after = room(concurrent, batch, lag, version, running + 1, accepted)
    assert after == max(0, found - 1)
    assert found - room(concurrent, batch, lag, version, running, accepted + 1) in (0, 1)


@given(st.integers(1, 64), st.integers(0, 8), SMALL)
def test_after_a_recovery_the_pipeline_fills_exactly_to_the_lag_bound(batch: int, lag: int, version: int) -> None:
    running = 0
    while more := room(10**6, batch, lag, version, running, version * batch):
        running += more
    assert running == (lag + 1) * batch
