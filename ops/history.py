"""What a run wrote down about itself, read back: steps, evaluations, outcomes and the last words of every actor.

The files are JSON lines of records (``runs/NAME/history``). A torn line, as a killed process leaves it, is counted and
passed over; a file that is not there is empty. Work that a learner's restart has undone is set apart from what stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from messages import Evaluation, Heartbeat, Outcome, OutcomeStatus, Record, Step

RecordT = TypeVar("RecordT", bound=Record)


@dataclass
class History:
    """A run's records in the order in which they were written.

    Attributes:
        lives: the last heartbeat of every life of every actor; a restarted actor has several, counters begin anew.
        beats: every heartbeat that was kept, for curves.
        unreadable: lines that were no record.
    """

    steps: list[Step] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    lives: list[Heartbeat] = field(default_factory=list)
    beats: list[Heartbeat] = field(default_factory=list)
    unreadable: int = 0

    def of_kind(self, kind: str) -> list[Heartbeat]:
        """The lives of one kind of actor."""
        return [life for life in self.lives if life.kind == kind]

    def total(self, kind: str, counter: str) -> float:
        """Sum of a counter over all lives of a kind; 0 when nobody counted it."""
        return sum(life.counters.get(counter, 0.0) for life in self.of_kind(kind))

    def newest(self, kind: str) -> Heartbeat | None:
        """The latest word of a kind of actor."""
        return max(self.of_kind(kind), key=lambda life: life.sent_s, default=None)


def read(folder: Path) -> History:
    """Read ``folder`` (the run's ``history``)."""
    history = History()
    history.steps = list(_records(folder / "steps.jsonl", Step, history))
    history.evaluations = list(_records(folder / "evaluations.jsonl", Evaluation, history))
    history.outcomes = list(_records(folder / "outcomes.jsonl", Outcome, history))
    history.beats = list(_records(folder / "heartbeats.jsonl", Heartbeat, history))
    history.lives = last_of_each_life(history.beats)
    return history


def last_of_each_life(beats: Iterable[Heartbeat]) -> list[Heartbeat]:
    """The newest heartbeat per (instance, start)."""
    last: dict[tuple[str, float], Heartbeat] = {}
    for beat in beats:
        life = (beat.instance, beat.started_s)
        if life not in last or beat.sent_s >= last[life].sent_s:
            last[life] = beat
    return list(last.values())


def surviving(steps: Iterable[Step]) -> list[Step]:
    """The steps that the newest weights stand on, in the order of their versions.

    A learner that came back from an older checkpoint has a higher epoch; its first step at version v undoes every
    earlier step that led to v or beyond.
    """
    kept: list[Step] = []
    for step in sorted(steps, key=lambda step: (step.epoch, step.batch_number, step.version)):
        while kept and kept[-1].epoch < step.epoch and _undone_by(kept[-1], step):
            kept.pop()
        kept.append(step)
    return kept


def _undone_by(earlier: Step, later: Step) -> bool:
    """Whether ``later``, the first of a new epoch that is compared, repeats what ``earlier`` did."""
    return earlier.version >= later.version if later.stepped else earlier.version > later.version


def final_states(outcomes: Iterable[Outcome]) -> dict[str, Outcome]:
    """How each group ended, by group id (see :meth:`OutcomeStatus.changes`); a replayed group is open (left out)."""
    states: dict[str, Outcome] = {}
    for outcome in outcomes:
        known = states.get(outcome.group_id)
        if outcome.status is OutcomeStatus.REPLAYED:
            if known is None or outcome.status.changes(known.status):
                states.pop(outcome.group_id, None)
        elif outcome.status.changes(known.status if known is not None else None):
            states[outcome.group_id] = outcome
    return states


def surviving_evaluations(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """One evaluation per domain and version (the newest epoch's, a full one before a partial one), by version."""
    best: dict[tuple[str, int], Evaluation] = {}
    for evaluation in evaluations:
        key = (evaluation.domain, evaluation.version)
        rank = (evaluation.epoch, evaluation.full, evaluation.finished_s)
        if key not in best or rank >= (best[key].epoch, best[key].full, best[key].finished_s):
            best[key] = evaluation
    return sorted(best.values(), key=lambda evaluation: (evaluation.domain, evaluation.version))


def _records(path: Path, record: type[RecordT], history: History) -> Iterator[RecordT]:
    if not path.is_file():
        return
    with path.open("rb") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                yield record.model_validate_json(line)
            except ValidationError:
                history.unreadable += 1
