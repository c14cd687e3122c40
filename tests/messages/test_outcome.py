"""Which end of a group counts when there is more than one."""

from __future__ import annotations

import pytest

from messages import OutcomeStatus

TRAINED, DROPPED, DEAD, REPLAYED = OutcomeStatus


@pytest.mark.parametrize("open_again", [None, REPLAYED])
def test_any_end_closes_an_open_group(open_again: OutcomeStatus | None) -> None:
    assert [status.changes(open_again) for status in (TRAINED, DROPPED, DEAD, REPLAYED)] == [True, True, True, False]


def test_nothing_changes_a_trained_group() -> None:
    assert not any(status.changes(TRAINED) for status in OutcomeStatus)


def test_only_a_training_changes_a_dropped_group() -> None:
    assert [status for status in OutcomeStatus if status.changes(DROPPED)] == [TRAINED]


def test_a_dead_group_is_opened_by_a_replay_or_found_to_be_trained() -> None:
    assert [status for status in OutcomeStatus if status.changes(DEAD)] == [TRAINED, REPLAYED]
