"""The figures of a run, worked out of its history: pure arithmetic over records, nothing is measured here.

Accuracies and shares are in [0, 1]. Counts of rollouts are in samples. What could not be known is None, never 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from messages import Evaluation, OutcomeStatus, Step
from ops.history import History, final_states, surviving, surviving_evaluations

ROOM = 0.05
"""A domain whose sampled accuracy starts less than this below 1 has no room to rise."""

Movement = Literal["rose", "fell", "held", "no_room", "unknown"]


class _Figures(BaseModel):
    model_config = ConfigDict(frozen=True)


class Change(_Figures):
    """An accuracy before and after training."""

    before: float | None = Field(default=None, description="at the first version that was evaluated")
    after: float | None = Field(default=None, description="at the last version that was evaluated")
    gain: float | None = Field(default=None, description="after minus before")
    noise: float | None = Field(default=None, description="two standard errors of the gain")


class DomainSummary(_Figures):
    """One domain: what was held out, what was trained."""

    sampled: Change = Field(description="mean score of the samples at temperature 1")
    greedy: Change = Field(description="mean score of the greedy answer")
    movement: Movement = Field(description="of the sampled accuracy; no_room when it began above 1 - ROOM")
    n_tasks: int = Field(description="held-out tasks of the last evaluation")
    samples_per_task: int
    n_errors: int = Field(description="checks that failed for our own reasons, in both evaluations")
    full: bool = Field(description="both evaluations saw every held-out task")
    versions: tuple[int, int] | None = Field(description="weight versions of before and after")
    reward_first: float | None = Field(description="mean training reward over the first tenth of the steps")
    reward_last: float | None = Field(description="mean training reward over the last tenth of the steps")
    trained_samples: int
    trained_tokens: int
    trained_share: float | None = Field(description="share of all trained tokens")


class Rollouts(_Figures):
    """The law of conservation, in samples: dispatched = trained + dropped + dead + open."""

    dispatched: int | None = Field(description="by the curriculum's ledger")
    generated: int = Field(description="by the generators; above dispatched when work was done twice")
    trained: int
    dropped: dict[str, int] = Field(description="by reason")
    dead: int
    open: int | None = Field(description="still on their way")
    law_closes: bool | None = Field(description="whether it adds up exactly; None when the ledger left no word")
    ledger: dict[str, int] = Field(description="the curriculum's own last figures")


class Lag(_Figures):
    """Versions between sampling and training, counted from a rollout's oldest token."""

    mean: float | None = Field(description="over trained samples")
    max: int | None
    bound: int | None = Field(description="max_lag of the run file")


class Worker(_Figures):
    """What generators or the learner did with their time."""

    tokens: int
    tokens_per_s: float | None = Field(description="over busy and waiting time, summed over processes")
    tokens_per_busy_s: float | None = Field(description="over busy time of one process")
    waiting_share: float | None = Field(description="of busy and waiting time")
    busy_s: float
    waiting_s: float
    lives: int = Field(description="processes that did it, restarts counted")


class Durations(_Figures):
    """Wall time in seconds."""

    run_s: float | None = Field(description="from the first actor's start to the last word")
    training_s: float | None = Field(description="from the first batch's begin to the last step's end")
    evaluation_s: float = Field(description="spent by evaluators")


class Summary(_Figures):
    """All figures of a run (``summary.json``)."""

    run: str
    epoch: int | None = Field(description="newest weight epoch; above 1 when the learner was restarted")
    version: int = Field(description="weight versions made: optimiser steps that stand")
    steps_skipped: int = Field(description="batches that took no step")
    steps_undone: int = Field(description="steps that a restart has undone")
    domains: dict[str, DomainSummary]
    sampled: Change = Field(description="mean over domains")
    greedy: Change = Field(description="mean over domains")
    sampled_rose_with_room: bool | None = Field(description="sampled accuracy rose in every domain with room")
    greedy_held: bool | None = Field(description="greedy accuracy did not fall in the mean")
    rollouts: Rollouts
    lag: Lag
    generator: Worker
    learner: Worker
    bus_s_per_rollout: float | None = Field(description="seconds of publish, ack and decode, waits included")
    durations: Durations
    dead_letters: int
    errors: int
    unreadable_lines: int = Field(description="of the history")


def summarise(history: History, run: str, max_lag: int | None = None) -> Summary:
    """Work all figures out.

    Args:
        history: what the run wrote down.
        run: its name.
        max_lag: the bound of the run file, to be shown beside what was seen.
    """
    steps = surviving(history.steps)
    stepped = [step for step in steps if step.stepped]
    domains = _domains(history, stepped)
    sampled, greedy = (_mean_change([getattr(d, which) for d in domains.values()]) for which in ("sampled", "greedy"))
    with_room = [d for d in domains.values() if d.movement not in ("no_room", "unknown")]
    rollouts = _rollouts(history)
    generated = rollouts.generated
    bus_s = sum(life.gauges.get("bus_s", life.counters.get("bus_s", 0.0)) for life in history.lives)
    return Summary(
        run=run,
        epoch=max((step.epoch for step in history.steps), default=None),
        version=max((step.version for step in stepped), default=0),
        steps_skipped=len(steps) - len(stepped),
        steps_undone=sum(step.stepped for step in history.steps) - len(stepped),
        domains=domains,
        sampled=sampled,
        greedy=greedy,
        sampled_rose_with_room=all((d.sampled.gain or 0) > 0 for d in with_room) if with_room else None,
        greedy_held=None if greedy.gain is None else greedy.gain >= 0,
        rollouts=rollouts,
        lag=_lag(stepped, max_lag),
        generator=_worker(history, "generator"),
        learner=_worker(history, "learner"),
        bus_s_per_rollout=bus_s / generated if generated else None,
        durations=_durations(history, steps),
        dead_letters=int(sum(life.counters.get("dead", 0) for life in history.lives)),
        errors=int(sum(life.counters.get("errors", 0) for life in history.lives)),
        unreadable_lines=history.unreadable,
    )


def _domains(history: History, stepped: Sequence[Step]) -> dict[str, DomainSummary]:
    by_domain: dict[str, list[Evaluation]] = {}
    for evaluation in surviving_evaluations(history.evaluations):
        if evaluation.n_tasks:
            by_domain.setdefault(evaluation.domain, []).append(evaluation)
    names = sorted({*by_domain, *(name for step in stepped for name in step.domains)})
    tokens = sum(part.n_tokens for step in stepped for part in step.domains.values())
    return {name: _domain(name, by_domain.get(name, []), stepped, tokens) for name in names}


def _domain(name: str, evaluations: list[Evaluation], stepped: Sequence[Step], all_tokens: int) -> DomainSummary:
    full = [evaluation for evaluation in evaluations if evaluation.full]
    pair = full if len(full) > 1 else evaluations
    before, after = (pair[0], pair[-1]) if len(pair) > 1 else (pair[0] if pair else None, None)
    parts = [step.domains[name] for step in stepped if name in step.domains]
    tenth = max(1, len(parts) // 10)
    trained_tokens = sum(part.n_tokens for part in parts)
    sampled = _change(before, after, "sampled_accuracy")
    last = after or before
    return DomainSummary(
        sampled=sampled,
        greedy=_change(before, after, "greedy_accuracy"),
        movement=movement(sampled),
        n_tasks=last.n_tasks if last else 0,
        samples_per_task=last.samples_per_task if last else 0,
        n_errors=sum(evaluation.n_errors for evaluation in (before, after) if evaluation),
        full=bool(before and after and before.full and after.full),
        versions=(before.version, after.version) if before and after else None,
        reward_first=_mean(part.reward_mean for part in parts[:tenth]),
        reward_last=_mean(part.reward_mean for part in parts[-tenth:]),
        trained_samples=sum(part.n_samples for part in parts),
        trained_tokens=trained_tokens,
        trained_share=trained_tokens / all_tokens if all_tokens else None,
    )


def movement(sampled: Change) -> Movement:
    """Where an accuracy went; a gain inside the noise is ``held``."""
    if sampled.before is None or sampled.gain is None:
        return "unknown"
    noise = sampled.noise or 0.0
    if sampled.before > 1 - ROOM and sampled.gain >= -noise:
        return "no_room"
    if abs(sampled.gain) <= noise:
        return "held"
    return "rose" if sampled.gain > 0 else "fell"


def _change(before: Evaluation | None, after: Evaluation | None, which: str) -> Change:
    first: float | None = getattr(before, which) if before else None
    last: float | None = getattr(after, which) if after else None
    if before is None or after is None or first is None or last is None:
        return Change(before=first, after=last)
    draws = [(first, before), (last, after)]
    variance = sum(p * (1 - p) / max(1, _draws(evaluation, which)) for p, evaluation in draws)
    return Change(before=first, after=last, gain=last - first, noise=2 * math.sqrt(max(0.0, variance)))


def _draws(evaluation: Evaluation, which: str) -> int:
    """Independent draws behind an accuracy on the SAME held-out tasks before and after."""
    per_task = max(1, evaluation.samples_per_task) if which == "sampled_accuracy" else 1
    return evaluation.n_tasks * per_task


def _mean_change(changes: Sequence[Change]) -> Change:
    """Mean over the domains that have both ends."""
    both = [change for change in changes if change.gain is not None]
    if not both:
        return Change(before=_mean(c.before for c in changes if c.before is not None))
    return Change(
        before=_mean(change.before or 0.0 for change in both),
        after=_mean(change.after or 0.0 for change in both),
        gain=_mean(change.gain or 0.0 for change in both),
        noise=math.sqrt(sum((change.noise or 0.0) ** 2 for change in both)) / len(both),
    )


def _rollouts(history: History) -> Rollouts:
    states = final_states(history.outcomes).values()
    closed = dict.fromkeys(OutcomeStatus, 0)
    dropped: Counter[str] = Counter()
    for outcome in states:
        closed[outcome.status] += outcome.n_samples
        if outcome.reason is not None:
            dropped[outcome.reason.value] += outcome.n_samples
    ledger = _ledger(history)
    # A message that dies has no outcome: the curriculum closes its group, and only its ledger knows.
    closed[OutcomeStatus.DEAD] = max(closed[OutcomeStatus.DEAD], ledger.get("dead", 0))
    recounted = sum(closed.values())
    dispatched = ledger.get("dispatched")
    still_open = None if dispatched is None else dispatched - recounted
    return Rollouts(
        dispatched=dispatched,
        generated=int(history.total("generator", "rollouts")),
        trained=closed[OutcomeStatus.TRAINED],
        dropped=dict(sorted(dropped.items())),
        dead=closed[OutcomeStatus.DEAD],
        open=still_open,
        law_closes=law_closes(ledger, recounted),
        ledger=ledger,
    )


def _ledger(history: History) -> dict[str, int]:
    curriculum = history.newest("curriculum")
    names = ("dispatched", "trained", "dropped", "dead", "open")
    gauges = curriculum.gauges if curriculum else {}
    return {name: round(gauges[name]) for name in names if name in gauges}


def law_closes(ledger: dict[str, int], recounted: int) -> bool | None:
    """Whether nothing was lost: the ledger adds up, and so do the outcomes that were recounted one by one.

    Outcomes may be newer than the ledger's last word, so they may have closed what it calls open, but nothing else.
    """
    if not {"dispatched", "trained", "dropped", "dead", "open"} <= ledger.keys():
        return None
    closed = ledger["trained"] + ledger["dropped"] + ledger["dead"]
    return ledger["dispatched"] == closed + ledger["open"] and closed <= recounted <= ledger["dispatched"]


def _lag(stepped: Sequence[Step], bound: int | None) -> Lag:
    samples = sum(step.n_samples for step in stepped)
    return Lag(
        mean=sum(step.lag_mean * step.n_samples for step in stepped) / samples if samples else None,
        max=max((step.lag_max for step in stepped), default=None),
        bound=bound,
    )


def _worker(history: History, kind: str) -> Worker:
    busy_s, waiting_s = history.total(kind, "busy_s"), history.total(kind, "waiting_s")
    tokens, lives = history.total(kind, "tokens"), len(history.of_kind(kind))
    processes = len({life.instance for life in history.of_kind(kind)})
    wall_s = (busy_s + waiting_s) / processes if processes else 0.0
    return Worker(
        tokens=int(tokens),
        tokens_per_s=tokens / wall_s if wall_s else None,
        tokens_per_busy_s=tokens / busy_s if busy_s else None,
        waiting_share=waiting_s / (busy_s + waiting_s) if busy_s + waiting_s else None,
        busy_s=busy_s,
        waiting_s=waiting_s,
        lives=lives,
    )


def _durations(history: History, steps: Sequence[Step]) -> Durations:
    begun = [step.finished_s - step.busy_s - step.waiting_s for step in steps]
    ends = [life.sent_s for life in history.lives] + [step.finished_s for step in history.steps]
    starts = [life.started_s for life in history.lives] or begun
    return Durations(
        run_s=max(ends) - min(starts) if ends and starts else None,
        training_s=max(step.finished_s for step in steps) - min(begun) if steps else None,
        evaluation_s=sum(evaluation.seconds for evaluation in history.evaluations),
    )


def document(summary: Summary) -> dict[str, Any]:
    """The layout of ``summary.json``."""
    rollouts = summary.rollouts.model_dump(exclude={"ledger"})
    domains = {name: _evaluation_document(domain) for name, domain in summary.domains.items()}
    mean = {
        end: {f"{kind}_accuracy": getattr(getattr(summary, kind), field) for kind in ("sampled", "greedy")}
        for end, field in (("before", "before"), ("after", "after"), ("change", "gain"))
    }
    return {
        "run": summary.run,
        "epoch": summary.epoch,
        "weight_versions": summary.version,
        "batches": {"steps_skipped": summary.steps_skipped, "steps_undone": summary.steps_undone},
        "evaluation": {"domains": domains, "mean": mean},
        "verdict": {
            "sampled_rose_in_every_domain_with_room": summary.sampled_rose_with_room,
            "greedy_did_not_fall_in_the_mean": summary.greedy_held,
            "movement": {name: domain.movement for name, domain in summary.domains.items()},
        },
        "rollouts": rollouts,
        "lag": summary.lag.model_dump(),
        "generator": summary.generator.model_dump(),
        "learner": summary.learner.model_dump(),
        "bus_s_per_rollout": summary.bus_s_per_rollout,
        "durations": summary.durations.model_dump(),
        "dead_letters": summary.dead_letters,
        "unreadable_lines": summary.unreadable_lines,
    }


def _evaluation_document(domain: DomainSummary) -> dict[str, Any]:
    shared = {"n_tasks": domain.n_tasks, "samples_per_task": domain.samples_per_task, "full": domain.full}
    ends: dict[str, Any] = {
        end: {
            "version": domain.versions[place] if domain.versions else None,
            "sampled_accuracy": getattr(domain.sampled, end),
            "greedy_accuracy": getattr(domain.greedy, end),
            **shared,
        }
        for place, end in enumerate(("before", "after"))
    }
    noise = {"sampled_accuracy": domain.sampled.noise, "greedy_accuracy": domain.greedy.noise}
    change = {"sampled_accuracy": domain.sampled.gain, "greedy_accuracy": domain.greedy.gain}
    return {**ends, "change": change, "noise": noise}


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None
