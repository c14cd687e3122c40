"""Rollouts, verdicts, experiences and batches with only what a test cares about spelled out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from messages import Batch, Experience, FinishReason, Rollout, Verdict, VerdictStatus


def rollout(group: str, index: int = 0, n: int = 2, **changes: Any) -> Rollout:
    """A rollout of three tokens, all of one version (0 unless ``versions`` says otherwise), of epoch 1."""
    versions = np.asarray(changes.pop("versions", (0, 0, 0)), np.int32)
    size = len(versions)
    fields: dict[str, Any] = {
        "id": f"{group}.{index}",
        "group_id": group,
        "task_id": f"task-of-{group}",
        "task_seq": 1,
        "domain": "d",
        "index": index,
        "n": n,
        "prompt_ids": np.array([5, 6], np.int32),
        "token_ids": np.array([7 + index, *range(8, 7 + size)][:size], np.int32),
        "logprobs": np.full(size, -4.5, np.float32),
        "loss_mask": np.ones(size, np.uint8),
        "versions": versions,
        "epoch": 1,
        "temperature": 1.0,
        "finish_reason": FinishReason.LENGTH,
        "response": f"r{index}",
        "generator": "generator-0",
        "started_s": 1.0,
        "finished_s": 2.0,
    }
    return Rollout(**{**fields, **changes})


def verdicts(group: str, rates: Sequence[float | None], scores: Sequence[dict[str, float]] = (), **changes: Any):
    """A whole group's verdicts; a rate of None is a check that failed for our reasons."""
    made = []
    for index, rate in enumerate(rates):
        status = VerdictStatus.INFRASTRUCTURE_ERROR
        if rate is not None:
            status = VerdictStatus.PASSED if rate == 1 else VerdictStatus.FAILED
        made.append(
            Verdict(
                rollout=rollout(group, index, len(rates), **changes),
                status=status,
                pass_rate=rate,
                scores=scores[index] if scores else {},
                seconds=0.1,
            )
        )
    return made


def experiences(group: str, n: int = 2, **changes: Any) -> list[Experience]:
    """A whole group's experiences: the first sample good, the others not."""
    return [
        Experience(
            rollout=rollout(group, index, n, **changes),
            reward=float(index == 0),
            advantage=1.0 if index == 0 else -1.0 / (n - 1),
            pass_rate=float(index == 0),
        )
        for index in range(n)
    ]


def batch(number: int, groups: Sequence[Sequence[Experience]], version: int = 0) -> Batch:
    """A batch of whole groups."""
    every = tuple(experience for group in groups for experience in group)
    return Batch(id=f"b{number}", number=number, version=version, experiences=every)
