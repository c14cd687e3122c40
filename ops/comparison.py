"""Several runs side by side (the same run file under several seeds): mean, lowest and highest of every figure.

A run that fails its aim stays in the table and is named; nothing is averaged away.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Document = Mapping[str, Any]

AIMED_GAIN = 0.25
"""Mean rise of sampled accuracy that the demonstration aims at."""

_FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("sampled accuracy before", "evaluation.mean.before.sampled_accuracy", lambda v: f"{100 * v:.1f} %"),
    ("sampled accuracy after", "evaluation.mean.after.sampled_accuracy", lambda v: f"{100 * v:.1f} %"),
    ("sampled accuracy gain", "evaluation.mean.change.sampled_accuracy", lambda v: f"{100 * v:+.1f}"),
    ("greedy accuracy before", "evaluation.mean.before.greedy_accuracy", lambda v: f"{100 * v:.1f} %"),
    ("greedy accuracy after", "evaluation.mean.after.greedy_accuracy", lambda v: f"{100 * v:.1f} %"),
    ("greedy accuracy gain", "evaluation.mean.change.greedy_accuracy", lambda v: f"{100 * v:+.1f}"),
    ("weight versions", "weight_versions", lambda v: f"{v:.0f}"),
    ("rollouts trained", "rollouts.trained", lambda v: f"{v:,.0f}"),
    ("lag, mean", "lag.mean", lambda v: f"{v:.2f}"),
    ("lag, maximum", "lag.max", lambda v: f"{v:.0f}"),
    ("generator tokens/s", "generator.tokens_per_s", lambda v: f"{v:,.0f}"),
    ("learner tokens/s", "learner.tokens_per_s", lambda v: f"{v:,.0f}"),
    ("generator waiting share", "generator.waiting_share", lambda v: f"{100 * v:.0f} %"),
    ("learner waiting share", "learner.waiting_share", lambda v: f"{100 * v:.0f} %"),
    ("bus time per rollout", "bus_s_per_rollout", lambda v: f"{1000 * v:.2f} ms"),
    ("training time", "durations.training_s", lambda v: f"{v:.0f} s"),
)


class NoSummary(ValueError):
    """A run folder without a readable ``summary.json``."""


@dataclass(frozen=True)
class Spread:
    """Mean, lowest and highest over the runs that know the figure."""

    mean: float
    lowest: float
    highest: float
    n: int


@dataclass(frozen=True)
class Comparison:
    """Runs, their spread and what failed."""

    names: tuple[str, ...]
    figures: dict[str, Spread]
    sampled_gain: dict[str, Spread]
    """Per domain."""
    greedy_gain: dict[str, Spread]
    failures: dict[str, tuple[str, ...]]
    """Why a run misses the aim, by its name; a run that meets it is not in here."""

    @property
    def succeeded(self) -> bool:
        """Whether every run meets the aim."""
        return not self.failures

    def markdown(self) -> str:
        """Two tables, and the runs that failed."""
        failed = [f"* **{name}**: {'; '.join(reasons)}" for name, reasons in self.failures.items()]
        verdict = (
            f"All {len(self.names)} runs meet the aim."
            if self.succeeded
            else "\n".join([f"{len(self.failures)} of {len(self.names)} runs miss the aim:", "", *failed])
        )
        formats = {label: form for label, _, form in _FIGURES}
        figures = [
            f"| {label} | {formats[label](s.mean)} | {formats[label](s.lowest)} | {formats[label](s.highest)} |"
            for label, s in self.figures.items()
        ]
        domains = [
            f"| {name} | {_points(self.sampled_gain.get(name))} | {_points(self.greedy_gain.get(name))} |"
            for name in sorted({*self.sampled_gain, *self.greedy_gain})
        ]
        return "\n".join(
            [
                f"Runs: {', '.join(self.names)}. {verdict}",
                "",
                "| figure | mean | lowest | highest |",
                "|---|--:|--:|--:|",
                *figures,
                "",
                "| domain | sampled gain, mean | lowest | highest | greedy gain, mean | lowest | highest |",
                "|---|--:|--:|--:|--:|--:|--:|",
                *domains,
                "",
            ]
        )


def load(folder: Path) -> Document:
    """The summary of one run.

    Raises:
        NoSummary: there is none, or it is not JSON.
    """
    path = folder / "summary.json"
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise NoSummary(f"{path}: {error}; a run writes it at its end") from error
    if not isinstance(found, dict):
        raise NoSummary(f"{path} holds {type(found).__name__}, expected an object")
    return found


def compare(documents: Sequence[Document], aimed_gain: float = AIMED_GAIN) -> Comparison:
    """Put summaries side by side.

    Args:
        documents: contents of ``summary.json``, one per run.
        aimed_gain: mean rise of sampled accuracy that a run must reach, in [0, 1].

    Raises:
        ValueError: no document.
    """
    if not documents:
        raise ValueError("there is no run to compare")
    names = tuple(f"seed {doc['seed']}" if doc.get("seed") is not None else str(doc.get("run")) for doc in documents)
    names = names if len(set(names)) == len(names) else tuple(f"{n} ({i + 1})" for i, n in enumerate(names))
    failures = {name: tuple(misses(doc, aimed_gain)) for name, doc in zip(names, documents, strict=True)}
    figures = {label: spread([_at(doc, path) for doc in documents]) for label, path, _ in _FIGURES}
    return Comparison(
        names=names,
        figures={label: found for label, found in figures.items() if found is not None},
        sampled_gain=_domain_gains(documents, "sampled_accuracy"),
        greedy_gain=_domain_gains(documents, "greedy_accuracy"),
        failures={name: reasons for name, reasons in failures.items() if reasons},
    )


def misses(document: Document, aimed_gain: float) -> list[str]:
    """What one run fails at; empty when it meets the aim."""
    sampled, greedy = (_at(document, f"evaluation.mean.change.{kind}_accuracy") for kind in ("sampled", "greedy"))
    found = []
    if sampled is None:
        found.append("sampled accuracy is not known at both ends")
    elif sampled < aimed_gain:
        found.append(f"sampled accuracy rose by {100 * sampled:.1f} points, aimed at {100 * aimed_gain:.0f}")
    if (document.get("verdict") or {}).get("sampled_rose_in_every_domain_with_room") is False:
        movement = document["verdict"].get("movement", {})
        changes = (document.get("evaluation") or {}).get("domains", {})
        fallen = [name for name in movement if movement[name] not in ("no_room", "unknown") and _fell(changes, name)]
        found.append(f"sampled accuracy did not rise in {', '.join(fallen) or 'a domain with room'}")
    if greedy is not None and greedy < 0:
        found.append(f"greedy accuracy fell by {-100 * greedy:.1f} points in the mean")
    if (document.get("rollouts") or {}).get("law_closes") is False:
        found.append("the law of conservation does not close")
    lag, bound = _at(document, "lag.max"), _at(document, "lag.bound")
    if lag is not None and bound is not None and lag > bound:
        found.append(f"a token was trained at lag {lag:.0f}, above {bound:.0f}")
    return found


def spread(values: Sequence[float | None]) -> Spread | None:
    """Mean, lowest and highest of the known values; None when none is known."""
    known = [value for value in values if value is not None]
    return Spread(sum(known) / len(known), min(known), max(known), len(known)) if known else None


def _fell(changes: Document, name: str) -> bool:
    gain = _at(changes, f"{name}.change.sampled_accuracy")
    return gain is not None and gain <= 0


def _domain_gains(documents: Sequence[Document], which: str) -> dict[str, Spread]:
    names = sorted({name for doc in documents for name in ((doc.get("evaluation") or {}).get("domains") or {})})
    found = {
        name: spread([_at(doc, f"evaluation.domains.{name}.change.{which}") for doc in documents]) for name in names
    }
    return {name: gains for name, gains in found.items() if gains is not None}


def _at(document: Document, path: str) -> float | None:
    value: Any = document
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _points(found: Spread | None) -> str:
    if found is None:
        return " | | "
    return " | ".join(f"{100 * value:+.1f}" for value in (found.mean, found.lowest, found.highest))
