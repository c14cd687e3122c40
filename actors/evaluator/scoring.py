"""Scoring a policy on held-out tasks: accuracy of samples at temperature 1 and of the greedy answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from actors.policy.engine import PromptTooLong, Request, Sample, SamplingParams
from actors.policy.engine_thread import EngineThread
from actors.policy.model import Policy, PromptEncodingError
from actors.verifiers.pool import VerifierPool
from messages import Task


@dataclass(frozen=True)
class Score:
    """What a domain came to.

    Attributes:
        sampled_accuracy, greedy_accuracy: means of pass rates over the samples that could be checked; None without any.
        n_errors: samples that could not be checked, and tasks that the policy can not read; in neither mean.
    """

    n_tasks: int
    n_errors: int
    samples_per_task: int
    sampled_accuracy: float | None
    greedy_accuracy: float | None
    seconds: float


@dataclass
class Scorer:
    """Generates with an engine and checks with a pool."""

    policy: Policy
    engine: EngineThread
    pool: VerifierPool
    max_tokens: int
    seed: int = 0

    async def score(self, tasks: Sequence[Task], samples_per_task: int) -> Score:
        """Score some tasks of one domain; the same policy, tasks and seed give the same score."""
        began = time.monotonic()
        answered = await asyncio.gather(*(self._answer(i, task, samples_per_task) for i, task in enumerate(tasks)))
        checked = await asyncio.gather(
            *(self._check(task, *answers) for task, answers in zip(tasks, answered, strict=True) if answers is not None)
        )
        unread = sum(answers is None for answers in answered)
        return Score(
            n_tasks=len(tasks),
            n_errors=unread * (samples_per_task + 1) + sum(errors for _, _, errors in checked),
            samples_per_task=samples_per_task,
            sampled_accuracy=_mean([rate for sampled, _, _ in checked for rate in sampled]),
            greedy_accuracy=_mean([rate for _, greedy, _ in checked for rate in greedy]),
            seconds=time.monotonic() - began,
        )

    async def _answer(self, index: int, task: Task, n: int) -> tuple[list[str], list[str]] | None:
        limit = min(self.max_tokens, task.max_tokens or self.max_tokens)
        try:
            prompt = self.policy.encode([message.model_dump() for message in task.messages])
            sampled, greedy = await asyncio.gather(
                *(
                    self.engine.generate(
                        Request(
                            f"{task.id}/{temperature}",
                            prompt,
                            count,
                            SamplingParams(
                                max_tokens=limit,
                                temperature=temperature,
                                stop_token_ids=self.policy.stop_ids,
                                seed=self.seed * 1_000_003 + index,
                            ),
                        )
                    )
                    for temperature, count in ((1.0, n), (0.0, 1))
                )
            )
        except (PromptEncodingError, PromptTooLong):
            return None
        return self._texts(sampled), self._texts(greedy)

    def _texts(self, samples: Sequence[Sample]) -> list[str]:
        return [self.policy.decode(sample.token_ids) for sample in samples]

    async def _check(self, task: Task, sampled: list[str], greedy: list[str]) -> tuple[list[float], list[float], int]:
        results = await self.pool.check([(task, text) for text in (*sampled, *greedy)])
        rates = [result.pass_rate for result in results]
        split = len(sampled)
        good_sampled = [rate for rate in rates[:split] if rate is not None]
        good_greedy = [rate for rate in rates[split:] if rate is not None]
        return good_sampled, good_greedy, sum(rate is None for rate in rates)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
