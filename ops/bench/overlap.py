"""Asynchronous against synchronous: the same run file at several lag bounds. How much does not waiting win?"""

from __future__ import annotations

import argparse
from typing import Any

from ops.bench._trial import run_once, scratch, steps_of, trained_per_s

LAGS = (0, 1, 2, 4)


def run(steps: int = 24, lags: tuple[int, ...] = LAGS, seed: int = 0, evaluate: bool = True) -> list[dict[str, Any]]:
    """One row per lag bound: rollouts trained per second, waiting shares, lag, held-out score after the last step."""
    rows = []
    with scratch() as folder:
        for lag in lags:
            name = f"lag-{lag}"
            evaluator = {"count": 1, "every_versions": 0} if evaluate else {"count": 0}
            changes = {
                "run": {"max_steps": steps, "seed": seed},
                "training": {"max_lag": lag},
                "evaluator": evaluator,
            }
            summary = run_once(folder, name, changes)
            rows.append(
                {
                    "max_lag": lag,
                    "rollouts_per_s": trained_per_s(steps_of(folder, name)),
                    "generator_waiting": summary["generator"]["waiting_share"],
                    "learner_waiting": summary["learner"]["waiting_share"],
                    "lag_mean": summary["lag"]["mean"],
                    "sampled_after": summary["evaluation"]["mean"]["after"]["sampled_accuracy"],
                    "dropped": summary["rollouts"]["dropped"],
                }
            )
    return rows


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24, help="versions per run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-evaluation", action="store_true", help="rates only: two actors fewer on the cores")
    arguments = parser.parse_args()
    rows = run(arguments.steps, seed=arguments.seed, evaluate=not arguments.no_evaluation)
    base = rows[0]["rollouts_per_s"]
    print("max_lag  rollouts/s  ratio  generator waits  learner waits  mean lag  sampled accuracy after")
    for row in rows:
        after = "-" if row["sampled_after"] is None else f"{row['sampled_after']:.3f}"
        print(
            f"{row['max_lag']:7d}  {row['rollouts_per_s']:10.1f}  {row['rollouts_per_s'] / base:5.2f}"
            f"  {row['generator_waiting']:15.2f}  {row['learner_waiting']:13.2f}  {row['lag_mean']:8.2f}  {after}"
            f"   dropped {row['dropped']}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
