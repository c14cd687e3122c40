"""Supervised fine-tuning: the policy learns the responses of prompt/response pairs, with RL's own parts.

The same seed and configuration give the same weights on the same machine. A pair is tokenised exactly as the
generator will tokenise its prompt, and its response ends with the token that ends a sample.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actors.learner.optimizers import PolicyOptimizer, adamw, muon_with_adamw
from actors.learner.pairs import (
    Pair,
    PairError,
    RejectedLine,
    generated_pairs,
    load_object,
    read_pairs,
    shuffled_forever,
)
from actors.learner.schedule import learning_rate
from actors.learner.sft_config import SftConfig
from actors.policy.logprobs import ScoredSequence, micro_batches, pad, padding_allowance, token_logprobs
from actors.policy.model import Policy, PolicyError, choose_device, load_policy

MAX_SKIPS_IN_A_ROW = 10_000
"""Pairs too long for ``max_tokens`` in a row before the source is called useless."""


@dataclass(frozen=True)
class SftProgress:
    """One optimiser step: ``loss`` in nats per response token, ``tokens_per_s`` of prompts and responses so far."""

    step: int
    total_steps: int
    stage: int
    loss: float
    lr: float
    grad_norm: float
    tokens_per_s: float


@dataclass(frozen=True)
class SftResult:
    """What SFT made: the loss of every step in nats per response token, and where the policy lies."""

    folder: Path
    losses: tuple[float, ...]
    tokens: int
    seconds: float
    skipped_pairs: int
    rejected_lines: tuple[RejectedLine, ...]

    @property
    def tokens_per_s(self) -> float:
        """Tokens of prompts and responses, without padding, per second of the whole loop."""
        return self.tokens / self.seconds if self.seconds else 0.0


def run_sft(config: SftConfig, progress: Callable[[SftProgress], None] | None = None) -> SftResult:
    """Train as ``config`` says and write the policy to ``config.out``; ``progress`` hears of every step.

    Raises:
        PolicyError: the starting policy can not be loaded or a prompt not be encoded, or the loss is not finite.
        PairError: the source of pairs is missing or unusable, or ends early.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    policy = _starting_policy(config)
    source = _Source(config)
    started = time.perf_counter()
    run = _Run(config, policy)
    for stage, (steps, options) in enumerate(config.plan()):
        pairs = source.stage(stage, options)
        for _ in range(steps):
            run.step(run.draw(pairs))
            if progress is not None:
                progress(run.report(stage, time.perf_counter() - started))
    seconds = time.perf_counter() - started
    policy.export(config.out)
    return SftResult(config.out, tuple(run.losses), run.tokens, seconds, run.skipped, tuple(source.rejected))


class _Source:
    """Pairs of each stage, reproducible from the seed."""

    def __init__(self, config: SftConfig) -> None:
        self._seed = config.seed
        self.rejected: list[RejectedLine] = []
        self._function = load_object(config.generator) if config.generator else None
        self._file_pairs: Iterator[Pair] = iter(())
        if config.files:
            pairs, self.rejected = read_pairs(config.files)
            self._file_pairs = shuffled_forever(pairs, np.random.default_rng(config.seed))

    def stage(self, number: int, options: dict[str, Any]) -> Iterator[Pair]:
        """Generated pairs of a stage have a seed of their own; files go on where the last stage stopped."""
        if self._function is None:
            return self._file_pairs
        seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        return generated_pairs(self._function, seed, options)


class _Run:
    """The state of one SFT run: policy, optimiser and what has been counted."""

    def __init__(self, config: SftConfig, policy: Policy) -> None:
        self._config = config
        self._policy = policy
        make = muon_with_adamw if config.optimizer == "muon" else adamw
        self._optimizer: PolicyOptimizer = make(policy, config.weight_decay, config.betas)
        self._limit = min(config.max_tokens or policy.context_length, policy.context_length)
        self.losses: list[float] = []
        self.tokens = self.skipped = 0
        self._lr = self._grad_norm = 0.0

    def draw(self, pairs: Iterator[Pair]) -> list[ScoredSequence]:
        """Return the next batch; pairs too long are counted and skipped."""
        batch: list[ScoredSequence] = []
        skips = 0
        while len(batch) < self._config.batch_size:
            pair = next(pairs, None)
            if pair is None:
                raise PairError(f"the source of pairs ended at step {len(self.losses)} of {self._config.total_steps}")
            sequence = self._encode(pair)
            if sequence.ids.size <= self._limit:
                batch.append(sequence)
                skips = 0
                continue
            skips += 1
            self.skipped += 1
            if skips >= MAX_SKIPS_IN_A_ROW:
                raise PairError(f"{skips} pairs in a row are longer than {self._limit} tokens: raise max_tokens")
        return batch

    def step(self, batch: Sequence[ScoredSequence]) -> None:
        """One optimiser step on the mean loss over the batch's response tokens."""
        config = self._config
        self._lr = learning_rate(len(self.losses), config.lr, config.schedule, config.warmup_steps, config.total_steps)
        total = sum(int(sequence.scored.sum()) for sequence in batch)
        loss_sum = 0.0
        self._optimizer.zero_grad()
        lengths = [sequence.ids.size for sequence in batch]
        for indices in micro_batches(lengths, config.micro_batch_tokens, padding_allowance(self._policy.device)):
            padded = pad([batch[i] for i in indices], self._policy.device)
            with torch.autocast(self._policy.device.type, dtype=torch.bfloat16, enabled=config.dtype == "bfloat16"):
                logprobs, _ = token_logprobs(self._policy.model, padded)
            loss = -logprobs.sum() / total
            loss.backward()  # type: ignore[no-untyped-call]
            loss_sum += float(loss.detach())
        self._grad_norm = self._optimizer.clip(config.grad_clip)
        if not (math.isfinite(loss_sum) and math.isfinite(self._grad_norm)):
            raise PolicyError(f"SFT step {len(self.losses)}: loss {loss_sum} is not finite: lower lr ({config.lr})")
        self._optimizer.step(self._lr)
        self.losses.append(loss_sum)
        self.tokens += sum(sequence.ids.size for sequence in batch)

    def report(self, stage: int, seconds: float) -> SftProgress:
        """Return what the last step did."""
        return SftProgress(
            step=len(self.losses),
            total_steps=self._config.total_steps,
            stage=stage,
            loss=self.losses[-1],
            lr=self._lr,
            grad_norm=self._grad_norm,
            tokens_per_s=self.tokens / seconds,
        )

    def _encode(self, pair: Pair) -> ScoredSequence:
        prompt = self._policy.encode(pair.messages)
        response = self._policy.encode_response(pair.response)
        ids = np.concatenate((prompt, response))
        return ScoredSequence(ids, np.arange(ids.size) >= max(1, prompt.size))


def _starting_policy(config: SftConfig) -> Policy:
    """Load the folder, or let the builder write a fresh policy and load that; always float32."""
    device = choose_device(config.device)
    if Path(config.policy).exists() or ":" not in config.policy:
        return load_policy(config.policy, str(device), "float32")
    build = load_object(config.policy)
    with tempfile.TemporaryDirectory(prefix="busrl-sft-") as scratch:
        folder = Path(scratch) / "policy"
        build(folder, seed=config.seed)
        return load_policy(folder, str(device), "float32")
