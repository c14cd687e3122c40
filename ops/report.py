"""The report at the end of a run: ``summary.json`` (figures), ``report.md`` (words) and ``report.png`` (curves).

It is made of what the run wrote down (``history``), so it can be made again at any time, also of a run that was killed.
What the launcher said of the run's end in ``summary.json`` stays as it is; figures that it does not have are added.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops import charts
from ops.history import read
from ops.report_words import headline, words
from ops.summary import Summary, document, summarise

NO_MATPLOTLIB = "There is no picture of the curves: matplotlib is not installed (`pip install 'busrl[report]'`)."


class NoHistory(ValueError):
    """The folder is not that of a run, or the run has written nothing down yet."""


@dataclass(frozen=True)
class Report:
    """What was written, and the figures in it.

    Attributes:
        document: what ``summary.json`` holds now.
        picture: None when matplotlib is not installed; ``picture_note`` says so.
    """

    summary: Summary
    document: dict[str, Any]
    headline: str
    summary_path: Path
    words_path: Path
    picture: Path | None
    picture_note: str = ""


def write(folder: Path) -> Report:
    """Write the report of the run in ``folder`` (``runs/NAME``).

    Raises:
        NoHistory: there is no ``history`` in it.
        OSError: it can not be written.
    """
    if not (folder / "history").is_dir():
        raise NoHistory(f"{folder} has no history folder, expected a run folder such as runs/demo")
    history = read(folder / "history")
    resolved = _read_json(folder / "resolved.json")
    max_lag = resolved.get("training", {}).get("max_lag")
    name = resolved.get("run", {}).get("name") or folder.resolve().name
    summary = summarise(history, name, max_lag)
    said = _read_json(folder / "summary.json")
    launcher = said if "ended_because" in said else {}
    whole = merged(document(summary), launcher)
    picture, note = _picture(history, summary, folder / "report.png")
    text = words(summary, launcher, picture.name if picture else None, note)
    _write_whole(folder / "summary.json", json.dumps(whole, indent=2) + "\n")
    _write_whole(folder / "report.md", text)
    return Report(
        summary=summary,
        document=whole,
        headline=headline(summary, launcher),
        summary_path=folder / "summary.json",
        words_path=folder / "report.md",
        picture=picture,
        picture_note=note,
    )


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """``theirs`` with what it lacks or does not know taken from ``ours``, at any depth."""
    result = dict(theirs)
    for key, value in ours.items():
        known = result.get(key)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            result[key] = merged(value, known)
        elif known is None:
            result[key] = value
    return result


def _picture(history: Any, summary: Summary, path: Path) -> tuple[Path | None, str]:
    if not charts.available():
        return None, NO_MATPLOTLIB
    if not history.steps and not history.evaluations:
        return None, "There is no picture of the curves: the run made no step and no evaluation."
    charts.draw(history, summary, path)
    return path, ""


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_whole(path: Path, text: str) -> None:
    """A reader sees the old file or the new one, never half of one."""
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
