"""The evaluator's knobs."""

from __future__ import annotations

from pydantic import Field

from runtime.config import ActorSection


class EvaluatorConfig(ActorSection):
    """Which versions are scored on held-out tasks, and how thoroughly."""

    every_versions: int = Field(
        default=10, ge=0, description="versions between evaluations while training; 0 is only the first and the last"
    )
    tasks_per_domain: int = Field(
        default=32, ge=1, description="held-out tasks per domain while training; the first and the last take all"
    )
    full_tasks_per_domain: int = Field(
        default=200, ge=1, description="held-out tasks per domain at the first and the last version at most"
    )
    samples_per_task: int = Field(
        default=8, ge=1, description="samples at temperature 1 per task at the first and the last version"
    )
    quick_samples_per_task: int = Field(default=2, ge=1, description="the same while training")
    max_sequences: int = Field(default=512, ge=1, le=65_536, description="sequences decoded together")
    workers: int = Field(default=1, ge=1, le=256, description="check processes")
    time_limit_s: float = Field(default=10.0, gt=0, description="seconds one check may take")
