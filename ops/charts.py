"""The curves of a run as one picture: a small panel per domain, and what the machinery did below them.

The x axis of every panel is the weight version, the one progress axis of the system. Needs matplotlib (the extra
``busrl[report]``), which is imported only here and only when a picture is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from messages import Evaluation, Step
from ops.history import History, surviving, surviving_evaluations
from ops.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAMPLED, GREEDY, REWARD, MACHINE, SECOND = "#1f6fb4", "#d9560b", "#8a8f98", "#2a7f62", "#9b4f96"
COLUMNS = 5
"""Domain panels in a row, at most."""


def available() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw(history: History, summary: Summary, path: Path) -> None:
    """Draw all panels into ``path`` (PNG).

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(summary.domains)
    columns = min(COLUMNS, max(3, math.ceil(math.sqrt(len(names) + 1))))
    rows = math.ceil((len(names) + 1) / columns)
    steps = [step for step in surviving(history.steps) if step.stepped]
    evaluations = surviving_evaluations(history.evaluations)
    last = max([step.version for step in steps] + [evaluation.version for evaluation in evaluations], default=1)
    with pyplot.rc_context(_STYLE):
        figure = pyplot.figure(figsize=(max(13.2, 3.3 * columns), 2.35 * rows + 3.9), layout="constrained")
        parts: Any = figure.subfigures(2, 1, height_ratios=[2.35 * rows + 0.9, 3.0])
        upper, lower = parts
        panels = list(upper.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
        _mean_panel(panels[0], evaluations, steps, summary)
        for panel, name in zip(panels[1:], names, strict=False):
            _domain_panel(panel, name, evaluations, steps, summary)
        for panel in panels[len(names) + 1 :]:
            panel.set_visible(False)
        for panel in panels[: len(names) + 1]:
            panel.set_xlim(-0.02 * last, 1.02 * last)
            panel.set_ylim(-0.03, 1.05)
        _frame(panels, len(names) + 1, columns)
        title = upper.suptitle(f"{summary.run}: held-out accuracy and training reward by weight version", fontsize=13)
        title.set_fontweight("bold")
        _legend(upper)
        _machine(lower.subplots(1, 4), history, steps, summary, last)
        figure.savefig(path, dpi=110)
        pyplot.close(figure)


_STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "figure.facecolor": "white",
}


def _frame(panels: Sequence[Axes], used: int, columns: int) -> None:
    """Tick labels and axis names on the outer panels that are there."""
    for place, panel in enumerate(panels[:used]):
        if place % columns == 0:
            panel.set_ylabel("accuracy, reward")
        if place + columns >= used:
            panel.tick_params(labelbottom=True)
            panel.set_xlabel("weight version")


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            color=SAMPLED,
            marker="o",
            markersize=4,
            label="sampled accuracy, held out (T = 1; titles: first → last)",
        ),
        Line2D([], [], color=GREEDY, marker="s", markersize=4, linestyle="--", label="greedy accuracy, held out"),
        Line2D([], [], color=REWARD, label="training reward (running mean over 10 steps; dots: steps)"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)


def _mean_panel(panel: Axes, evaluations: Sequence[Evaluation], steps: Sequence[Step], summary: Summary) -> None:
    panel.set_facecolor("#f3f6fa")
    _title(panel, "mean over domains", summary.sampled.before, summary.sampled.after, bold=True)
    for which, style in (("sampled_accuracy", _sampled_style()), ("greedy_accuracy", _greedy_style())):
        _line(panel, mean_scores(evaluations, which), **style)
    rewards = [
        (step.version, sum(d.reward_mean * d.n_samples for d in step.domains.values()) / step.n_samples)
        for step in steps
        if step.n_samples
    ]
    _reward(panel, rewards)


def mean_scores(evaluations: Sequence[Evaluation], which: str) -> list[tuple[int, float]]:
    """Mean of a score over the domains that are measured at all, at each version where every one of them was."""
    by_version: dict[int, dict[str, float]] = {}
    for evaluation in evaluations:
        score: float | None = getattr(evaluation, which)
        if evaluation.n_tasks and score is not None:
            by_version.setdefault(evaluation.version, {})[evaluation.domain] = score
    measured = {domain for scores in by_version.values() for domain in scores}
    return [
        (version, sum(scores.values()) / len(scores))
        for version, scores in sorted(by_version.items())
        if scores.keys() == measured
    ]


def _domain_panel(
    panel: Axes, name: str, evaluations: Sequence[Evaluation], steps: Sequence[Step], summary: Summary
) -> None:
    domain = summary.domains[name]
    _title(panel, name, domain.sampled.before, domain.sampled.after, bold=False)
    found = [evaluation for evaluation in evaluations if evaluation.domain == name and evaluation.n_tasks]
    _reward(panel, [(step.version, step.domains[name].reward_mean) for step in steps if name in step.domains])
    for which, style in (("sampled_accuracy", _sampled_style()), ("greedy_accuracy", _greedy_style())):
        _line(panel, [(e.version, getattr(e, which)) for e in found if getattr(e, which) is not None], **style)


def _title(panel: Axes, name: str, before: float | None, after: float | None, bold: bool) -> None:
    ends = "" if before is None or after is None else f"   {_points(before)} → {_points(after)}"
    panel.set_title(f"{name}{ends}", loc="left", fontweight="bold" if bold else "normal")


def _points(value: float) -> str:
    return f"{value:.2f}".lstrip("0") if value < 1 else "1"


def _sampled_style() -> dict[str, Any]:
    return {"color": SAMPLED, "marker": "o", "markersize": 3.2, "zorder": 3}


def _greedy_style() -> dict[str, Any]:
    return {"color": GREEDY, "marker": "s", "markersize": 2.8, "linestyle": "--", "zorder": 3}


def _line(panel: Axes, points: Sequence[tuple[float, float]], **style: Any) -> None:
    if points:
        panel.plot([x for x, _ in points], [y for _, y in points], **style)


def _reward(panel: Axes, points: Sequence[tuple[int, float]]) -> None:
    if not points:
        return
    versions, rewards = [x for x, _ in points], [y for _, y in points]
    panel.plot(versions, rewards, color=REWARD, linestyle="", marker=".", markersize=2, alpha=0.35, zorder=1)
    panel.plot(versions, running_mean(rewards, 10), color=REWARD, linewidth=1.2, alpha=0.9, zorder=2)


def running_mean(values: Sequence[float], width: int) -> list[float]:
    """Mean of each value and up to ``width - 1`` before it."""
    return [sum(values[max(0, i + 1 - width) : i + 1]) / min(i + 1, width) for i in range(len(values))]


def _machine(panels: Sequence[Axes], history: History, steps: Sequence[Step], summary: Summary, last: int) -> None:
    versions = [step.version for step in steps]
    lag, entropy, speed, waiting = panels
    lag.set_title("lag of trained tokens (versions)", loc="left")
    if steps:
        means = running_mean([step.lag_mean for step in steps], 5)
        lag.plot(versions, means, color=MACHINE, label="mean of the batch")
        most = [step.lag_max for step in steps]
        lag.plot(versions, most, color=SECOND, linestyle="", marker=".", markersize=3, label="maximum")
    if summary.lag.bound is not None:
        lag.axhline(summary.lag.bound, color="#b00020", linewidth=1, linestyle=":", label="max_lag")
    lag.set_ylim(bottom=-0.05)
    entropy.set_title("entropy (nats per trained token)", loc="left")
    with_entropy = [(step.version, step.metrics["entropy"]) for step in steps if "entropy" in step.metrics]
    _line(entropy, with_entropy, color=MACHINE, label="policy")
    entropy.set_ylim(bottom=0)
    speed.set_title("throughput (tokens/s)", loc="left")
    trained = [step.n_tokens / max(1e-9, step.busy_s + step.waiting_s) for step in steps]
    _line(speed, list(zip(versions, running_mean(trained, 5), strict=True)), color=MACHINE, label="learner")
    _line(speed, generated_tokens_per_s(history), color=SECOND, label="generators")
    speed.set_ylim(bottom=0)
    waiting.set_title("waiting share", loc="left")
    shares = [step.waiting_s / max(1e-9, step.busy_s + step.waiting_s) for step in steps]
    _line(waiting, list(zip(versions, running_mean(shares, 5), strict=True)), color=MACHINE, label="learner")
    _line(waiting, generator_waiting(history), color=SECOND, label="generators")
    waiting.set_ylim(-0.02, 1.02)
    for panel in panels:
        panel.set_xlabel("weight version")
        panel.set_xlim(-0.02 * last, 1.02 * last)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=7.5, frameon=False)
        else:
            panel.text(0.5, 0.5, "not recorded", transform=panel.transAxes, ha="center", color=REWARD)


def generated_tokens_per_s(history: History) -> list[tuple[float, float]]:
    """Tokens per second of all generators between two of a generator's beats, at the version it then had."""
    return _between_beats(history, lambda before, after, seconds: (after["tokens"] - before["tokens"]) / seconds, True)


def generator_waiting(history: History) -> list[tuple[float, float]]:
    """Waiting share of the generators between two beats, at the version they then had."""

    def share(before: dict[str, float], after: dict[str, float], seconds: float) -> float:
        waited = after.get("waiting_s", 0.0) - before.get("waiting_s", 0.0)
        busy = after.get("busy_s", 0.0) - before.get("busy_s", 0.0)
        return waited / (waited + busy) if waited + busy > 0 else 0.0

    return _between_beats(history, share, False)


def _between_beats(history: History, figure: Any, add_up: bool) -> list[tuple[float, float]]:
    lives: dict[tuple[str, float], list[Any]] = {}
    for beat in history.beats:
        if beat.kind == "generator" and "tokens" in beat.counters:
            lives.setdefault((beat.instance, beat.started_s), []).append(beat)
    found: dict[int, list[float]] = {}
    for beats in lives.values():
        for before, after in pairwise(beats):
            seconds = after.sent_s - before.sent_s
            if seconds > 0.5:
                version = round(after.gauges.get("version", 0.0))
                found.setdefault(version, []).append(figure(before.counters, after.counters, seconds))
    instances = len({instance for instance, _ in lives}) if add_up else 1
    points = [(float(version), instances * sum(values) / len(values)) for version, values in sorted(found.items())]
    smooth = running_mean([y for _, y in points], 3)
    return [(x, y) for (x, _), y in zip(points, smooth, strict=True)]
