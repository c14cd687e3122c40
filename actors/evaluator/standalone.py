"""Scoring a Hugging Face folder without a run: what ``busrl eval`` does."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from actors.evaluator.scoring import Score, Scorer
from actors.policy.engine import TorchEngine
from actors.policy.engine_thread import EngineThread
from actors.policy.model import PolicyError, load_policy
from actors.verifiers.pool import VerifierPool
from messages import Task
from runtime.errors import UserError


def run(
    folder: Path,
    tasks: Iterable[Task],
    *,
    samples_per_task: int = 8,
    max_tokens: int = 256,
    device: str = "auto",
    max_sequences: int = 256,
    seed: int = 0,
    trust_code: bool = False,
    time_limit_s: float = 10.0,
    progress: Callable[[str, Score], None] | None = None,
) -> dict[str, Score]:
    """Score a policy per domain.

    Args:
        folder: a Hugging Face model folder.
        tasks: held-out tasks of any domains.
        samples_per_task: samples at temperature 1 per task; one greedy answer comes on top.
        max_tokens: tokens per sample at most.
        device: auto, cpu, cuda or cuda:N.
        max_sequences: sequences decoded together.
        seed: of the samples; the same seed gives the same score.
        trust_code: allow ``python`` verifiers.
        time_limit_s: seconds one check may take.
        progress: called with each domain and its score as it is done.

    Raises:
        UserError: the folder is not a policy, or there are no tasks.
    """
    by_domain: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        by_domain[task.domain].append(task)
    if not by_domain:
        raise UserError("there are no tasks to evaluate on")
    try:
        policy = load_policy(folder, device)
    except PolicyError as error:
        raise UserError(str(error)) from error

    async def score() -> dict[str, Score]:
        engine = EngineThread(TorchEngine(policy.model, max_sequences=max_sequences, seed=seed))
        scores = {}
        async with VerifierPool(1, time_limit_s, trust_code=trust_code) as pool:
            scorer = Scorer(policy, engine, pool, max_tokens, seed)
            for domain in sorted(by_domain):
                scores[domain] = await scorer.score(by_domain[domain], samples_per_task)
                if progress is not None:
                    progress(domain, scores[domain])
        await engine.close()
        return scores

    return asyncio.run(score())
