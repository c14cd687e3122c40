"""The demo over several seeds: what it gains, per domain and in the mean, with the seeds that fail in plain sight."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ops.bench._trial import DEMO, run_once, scratch


def run(seeds: tuple[int, ...] = (0, 1, 2), keep: Path | None = None, steps: int | None = None) -> list[dict[str, Any]]:
    """The summaries, one per seed; also written to ``keep`` when given."""
    summaries = []
    with scratch() as folder:
        for seed in seeds:
            changes: dict[str, Any] = {"run": {"seed": seed} | ({"max_steps": steps} if steps else {})}
            summaries.append(run_once(folder, f"seed-{seed}", changes))
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"seed-{seed}.json").write_text(json.dumps(summaries[-1], indent=2) + "\n")
                picture = folder / f"seed-{seed}" / "report.png"
                if picture.exists():
                    (keep / f"seed-{seed}.png").write_bytes(picture.read_bytes())
    return summaries


def main() -> int:
    """Print the comparison; exit 1 when the aims are missed by any seed."""
    from ops import comparison

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=None, help=f"instead of those of {DEMO.name}")
    parser.add_argument("--keep", type=Path, default=None, help="folder for the summaries and pictures")
    arguments = parser.parse_args()
    summaries = run(tuple(arguments.seeds), arguments.keep, arguments.steps)
    found = comparison.compare(summaries)
    print(found.markdown())
    return 0 if found.succeeded else 1


if __name__ == "__main__":
    raise SystemExit(main())
