"""A run's figures in words: what rose, what fell, what it does and does not show, and what went wrong. Pure text.

The words are bound by one rule: sampled accuracy that catches up with greedy accuracy is sharpening, and is called so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ops.summary import Change, DomainSummary, Summary, Worker

_MOVEMENTS = {
    "rose": "rose",
    "fell": "**fell**",
    "held": "held (the change is within the noise)",
    "no_room": "no room to rise",
    "unknown": "not evaluated twice",
}
_LEARNED = 0.02
"""A mean greedy gain from which on the best answer is said to have got better, if it is above the noise too."""


def words(summary: Summary, launcher: Mapping[str, Any], picture: str | None, picture_note: str) -> str:
    """The report as Markdown.

    Args:
        summary: the figures.
        launcher: what the launcher wrote in ``summary.json`` about the run's end; empty when it was killed.
        picture: file name of the curves, or None.
        picture_note: why there is no picture.
    """
    parts = [
        f"# Run {summary.run}",
        headline(summary, launcher),
        *_problems(summary, launcher),
        "## Held-out accuracy",
        *_accuracy(summary),
        "## What this shows, and what it does not",
        meaning(summary),
        f"![Curves against the weight version]({picture})" if picture else picture_note,
        "## What became of every rollout",
        *_conservation(summary),
        "## Lag, speed and time",
        *_speed(summary, launcher),
    ]
    return "\n\n".join(parts) + "\n"


def headline(summary: Summary, launcher: Mapping[str, Any] | None = None) -> str:
    """One sentence or two: whether it got better, by how much, in how long."""
    versions = f"{summary.version} weight version" + ("s" if summary.version != 1 else "")
    seconds = summary.durations.training_s
    took = f" in {_duration(seconds)}" if seconds else ""
    seed = (launcher or {}).get("seed")
    who = f"Seed {seed}: " if seed is not None else ""
    if summary.sampled.gain is None:
        return f"{who}{versions}{took}. Held-out accuracy was not measured at both ends, so no gain is claimed."
    compared = {name: domain for name, domain in summary.domains.items() if domain.sampled.gain is not None}
    rose = [name for name, domain in compared.items() if domain.movement == "rose"]
    room = [name for name, domain in compared.items() if domain.movement != "no_room"]
    tasks = f"held-out tasks of {next(iter(compared))}" if len(compared) == 1 else "held-out tasks"
    over = "" if len(compared) == 1 else f" in the mean over {len(compared)} domains"
    return (
        f"{who}{versions}{took}. Sampled accuracy on {tasks} went from {_share(summary.sampled.before)} to "
        f"{_share(summary.sampled.after)}{_earlier(compared, summary.version)}{over} ({_points(summary.sampled)}); "
        f"it rose in {len(rose)} of the {len(room)} domains that had room. "
        f"Greedy accuracy went from {_share(summary.greedy.before)} to {_share(summary.greedy.after)} "
        f"({_points(summary.greedy)})."
    )


def _earlier(compared: Mapping[str, DomainSummary], version: int) -> str:
    """At which version the last figures are from, where that is not the run's last."""
    measured = {domain.versions[1] for domain in compared.values() if domain.versions} - {version}
    return f" at version {max(measured)}, the last that was fully evaluated," if measured else ""


def meaning(summary: Summary) -> str:
    """What the figures do and do not show."""
    sampled, greedy = summary.sampled, summary.greedy
    if sampled.gain is None or greedy.gain is None:
        return "Without both accuracies, before and after, nothing can be said about what was learned."
    learned = greedy.gain > max(_LEARNED, greedy.noise or 0.0)
    if sampled.gain <= (sampled.noise or 0.0):
        text = "Sampled accuracy did not rise by more than the noise: this run shows no learning."
        return text + _fallen(summary)
    began, ended = greedy.before or 0.0, sampled.after or 0.0
    if not learned and ended > began + (greedy.noise or 0.0):
        text = (
            f"Sampled accuracy ended at {_share(ended)}, above the {_share(began)} where greedy accuracy began, so "
            f"this is not only sharpening; but greedy accuracy moved by {_points(greedy)}, within its noise or too "
            "little to call it learned. More held-out tasks, or more steps, would tell."
        )
    elif not learned:
        text = (
            f"The gain is **sharpening**: sampled accuracy rose by {_points(sampled)} towards what the policy's greedy "
            f"answer could already do ({_share(greedy.before)} before training), while greedy accuracy moved by "
            f"{_points(greedy)}. The policy now gives its best answer more often; it has not shown a new skill."
        )
    elif ended <= began:
        text = (
            f"Both moved. Sampled accuracy ({_share(ended)}) is still at or below where greedy accuracy began "
            f"({_share(began)}), which is sharpening; but greedy accuracy itself rose by {_points(greedy)}: "
            "the best answer got better too."
        )
    else:
        text = (
            f"Greedy accuracy rose by {_points(greedy)}, more than its noise: the policy's best answer got better. "
            f"The rest of the {_points(sampled)} of sampled accuracy is sharpening: the same answer, more reliably."
        )
    return text + _fallen(summary)


def _fallen(summary: Summary) -> str:
    fallen = [
        f"{name} ({_points(change)})"
        for name, domain in summary.domains.items()
        for change in (domain.greedy,)
        if change.gain is not None and change.gain < -(change.noise or 0.0)
    ]
    return f" Greedy accuracy fell by more than its noise in {', '.join(fallen)}." if fallen else ""


def _problems(summary: Summary, launcher: Mapping[str, Any]) -> Iterator[str]:
    found = list(_findings(summary, launcher))
    if found:
        yield "## Look at this first"
        yield "\n".join(f"* {problem}" for problem in found)


def _findings(summary: Summary, launcher: Mapping[str, Any]) -> Iterator[str]:
    if launcher.get("exit_code"):
        yield f"The run failed: {launcher.get('ended_because', 'its launcher did not say why')}."
    if not launcher:
        yield "The launcher left no word of the run's end: it was killed, or the run is still going on."
    if launcher.get("restarts"):
        yield f"{launcher['restarts']} processes crashed and were started again; `logs/` has their last words."
    if summary.sampled_rose_with_room is False:
        names = [
            f"{name} ({_points(domain.sampled)})"
            for name, domain in summary.domains.items()
            if domain.movement not in ("no_room", "unknown") and (domain.sampled.gain or 0.0) <= 0
        ]
        yield f"Sampled accuracy did not rise in {', '.join(names)}, which had room. This seed does not meet the aim."
    if summary.greedy_held is False:
        yield f"Greedy accuracy fell in the mean ({_points(summary.greedy)}). This seed does not meet the aim."
    if summary.rollouts.law_closes is False:
        yield f"The law of conservation does not close: {summary.rollouts.ledger}. Rollouts were lost or counted twice."
    if summary.lag.max is not None and summary.lag.bound is not None and summary.lag.max > summary.lag.bound:
        yield f"A token was trained at lag {summary.lag.max}, above max_lag = {summary.lag.bound}. This is a bug."
    if summary.dead_letters:
        yield f"{summary.dead_letters} messages were given up; `busrl dead list` shows them."
    if summary.steps_undone:
        yield f"{summary.steps_undone} steps were undone by a restart of the learner and are not in these figures."
    if any(domain.n_errors for domain in summary.domains.values()):
        errors = sum(domain.n_errors for domain in summary.domains.values())
        yield f"{errors} checks of held-out answers failed for our own reasons; they are in no score."
    if any(not domain.full and domain.versions for domain in summary.domains.values()):
        yield "Not every domain was evaluated on all its held-out tasks at both ends."


def _accuracy(summary: Summary) -> Iterator[str]:
    rows = [
        "| domain | sampled before | after | gain | greedy before | after | gain | training reward | trained | |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    rows += [_row(name, domain) for name, domain in summary.domains.items()]
    rows.append(
        f"| **mean** | {_ends(summary.sampled)} | {_ends(summary.greedy)} | | "
        f"{sum(domain.trained_samples for domain in summary.domains.values())} | |"
    )
    yield "\n".join(rows)
    domain = next(iter(summary.domains.values()), None)
    if domain is not None:
        counts = sorted({found.n_tasks for found in summary.domains.values()})
        tasks = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
        yield (
            f"Accuracy in percent on {tasks} held-out tasks per domain, none of them trained on. Sampled: the mean of "
            f"{domain.samples_per_task} answers at temperature 1. Greedy: the most probable answer. A gain in brackets "
            "is within two standard errors, so it may be chance. Training reward: means over the first and the last "
            "tenth of the steps. Trained: samples that entered a step."
        )


def _row(name: str, domain: DomainSummary) -> str:
    rewards = f"{_number(domain.reward_first)} → {_number(domain.reward_last)}"
    return (
        f"| {name} | {_ends(domain.sampled)} | {_ends(domain.greedy)} | {rewards} | {domain.trained_samples} | "
        f"{_MOVEMENTS[domain.movement]} |"
    )


def _ends(change: Change) -> str:
    gain = "" if change.gain is None else f"{100 * change.gain:+.1f}"
    if change.gain is not None and abs(change.gain) <= (change.noise or 0.0):
        gain = f"({gain})"
    return f"{_percent(change.before)} | {_percent(change.after)} | {gain}"


def _conservation(summary: Summary) -> Iterator[str]:
    found = summary.rollouts
    dropped = sum(found.dropped.values())
    reasons = ", ".join(f"{n} {reason}" for reason, n in found.dropped.items())
    parts = f"{found.trained} trained + {dropped} dropped + {found.dead} dead + {_known(found.open)} open"
    says = {True: "The law closes", False: "**The law does not close**", None: "The curriculum's ledger left no word"}
    law = says[found.law_closes]
    yield f"{_known(found.dispatched)} dispatched = {parts}. {law}. {found.generated} were generated."
    if reasons:
        yield f"Dropped, by reason: {reasons}."
        if found.dropped.get("no_signal"):
            yield "`no_signal`: all samples of a group earned the same, so there was nothing to learn from; by design."


def _speed(summary: Summary, launcher: Mapping[str, Any]) -> Iterator[str]:
    lag, durations = summary.lag, summary.durations
    bound = f" (max_lag = {lag.bound})" if lag.bound is not None else ""
    yield (
        f"Lag of what was trained: {_number(lag.mean)} versions in the mean, {_known(lag.max)} at most{bound}. "
        "It counts from the oldest token of a rollout and includes the time in queues."
    )
    yield "\n".join(
        [
            "| | tokens | tokens/s | tokens/s while busy | waiting share |",
            "|---|--:|--:|--:|--:|",
            _worker("generator", summary.generator),
            _worker("learner", summary.learner),
        ]
    )
    bus = summary.bus_s_per_rollout
    because = launcher.get("ended_because")
    yield " ".join(
        [
            f"Publishing, acknowledging and decoding took {1000 * bus:.2f} ms per rollout over all actors, "
            "their waiting for the bus's answers included."
            if bus is not None
            else "",
            f"The run lasted {_duration(durations.run_s)}, training {_duration(durations.training_s)}, "
            f"evaluation {_duration(durations.evaluation_s)} (beside it).",
            f"It ended because: {because}." if because else "",
        ]
    ).strip()


def _worker(name: str, worker: Worker) -> str:
    share = "" if worker.waiting_share is None else f"{100 * worker.waiting_share:.0f} %"
    speeds = [f"{speed:,.0f}" if speed is not None else "" for speed in (worker.tokens_per_s, worker.tokens_per_busy_s)]
    return f"| {name} | {worker.tokens:,} | {speeds[0]} | {speeds[1]} | {share} |"


def _points(change: Change) -> str:
    return "not known" if change.gain is None else f"{100 * change.gain:+.1f} points"


def _share(value: float | None) -> str:
    return "?" if value is None else f"{100 * value:.1f} %"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"


def _known(value: int | None) -> str:
    return "an unknown number" if value is None else str(value)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
