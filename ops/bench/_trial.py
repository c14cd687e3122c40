"""One whole run as a user starts it, and what its summary says: the part that several benchmarks share."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo" / "run.toml"


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for run folders that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="busrl-bench-") as folder:
        yield Path(folder)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` laid over it, table by table; a value of None takes a key out."""
    result = dict(base)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def to_toml(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """A run file's text: plain values first, then its tables."""
    plain = [f"{key} = {_value(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    text = (f"[{'.'.join(path)}]\n" if path else "") + "\n".join(plain) + "\n"
    for key, value in table.items():
        if isinstance(value, Mapping):
            text += to_toml(value, (*path, key))
    return text


def _value(value: Any) -> str:
    return json.dumps(value)


def run_once(folder: Path, name: str, changes: Mapping[str, Any], base: Path = DEMO) -> dict[str, Any]:
    """Run ``base`` with ``changes`` under ``folder`` and return its summary.

    Raises:
        RuntimeError: the run failed; the message ends with what it said last.
    """
    table = tomllib.loads(base.read_text())
    table["policy"]["path"] = str((base.parent / table["policy"]["path"]).resolve())
    table = merged(table, changes)
    table["run"] |= {"name": name, "dir": str(folder)}
    run_file = folder / f"{name}.toml"
    run_file.write_text(to_toml(table))
    command = [sys.executable, "-m", "runtime.cli", "up", str(run_file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    summary = folder / name / "summary.json"
    if done.returncode != 0 or not summary.exists():
        raise RuntimeError(f"run {name} ended with {done.returncode}: {done.stderr[-2000:] or done.stdout[-2000:]}")
    found: dict[str, Any] = json.loads(summary.read_text())
    return found


def steps_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """The steps of a run, as its history has them."""
    lines = (folder / name / "history" / "steps.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def trained_per_s(steps: list[dict[str, Any]], skip: int = 3) -> float:
    """Rollouts trained per second between step ``skip`` and the last, so that starting up does not count."""
    real = [step for step in steps if step["stepped"]]
    if len(real) <= skip + 1:
        raise RuntimeError(f"only {len(real)} steps; at least {skip + 2} are needed to measure a rate")
    seconds = real[-1]["finished_s"] - real[skip]["finished_s"]
    return float(sum(step["n_samples"] for step in real[skip + 1 :]) / seconds)
