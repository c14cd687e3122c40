"""What the learner costs over a bare torch loop, and what shared prefixes save: tokens/s, in one process, by turns.

The learner runs twice: with a row per sample, as the bare loop does, and with shared prefixes, as in a run. The bare
loop is written out here: same model, same micro-batches already on the device, plain policy-gradient loss over the
same tokens, clipping and the same AdamW; no checks, no importance weights, no metrics. Torch is imported when the
bench runs, so that reading this file needs none.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from actors.learner.config import LearnerConfig
    from actors.learner.sample import TrainSample
    from actors.policy.model import Policy

AIM = 0.95


def run(
    *,
    tasks: int = 8,
    samples: int = 16,
    rounds: int = 20,
    micro_batch_tokens: int = 2048,
    seed: int = 0,
    device: str = "cpu",
) -> dict[str, Any]:
    """Time ``rounds`` optimiser steps of the trainer and of the bare loop, alternating, after one warm-up of each.

    A batch is ``tasks`` groups of ``samples`` rollouts of the tiny policy: prompts of 10 to 80 tokens, random
    responses of log-normal length (median 12). Returns tokens/s (of samples, without padding) as medians over rounds,
    and medians of the rounds' ratios: ``ratio`` is the trainer's speed over the bare loop's, both with a row per
    sample (1 is free, ``aim`` is what is asked for); ``shared_prefix_gain`` is its speed with shared prefixes over
    that without. Those with ``cpu`` count processor time instead of the clock's, which holds still when other work
    shares the cores; on a GPU only the others mean something.
    """
    import torch

    from actors.learner.config import LearnerConfig
    from actors.learner.trainer import Trainer

    config = LearnerConfig(micro_batch_tokens=micro_batch_tokens, warmup_steps=0)
    torch.set_num_threads(config.threads)
    batch = _batch(tasks, samples, seed)
    tokens = sum(sample.prompt_ids.size + sample.token_ids.size for sample in batch)
    with tempfile.TemporaryDirectory(prefix="busrl-bench-") as folder:
        trainer, shared = (Trainer(_tiny(Path(folder), device), config, seed) for _ in range(2))
        trainer.shares_prefixes = False
        steps: dict[str, Callable[[], object]] = {
            "trainer": lambda: trainer.step(batch),
            "shared": lambda: shared.step(batch),
            "bare": _bare_loop(_tiny(Path(folder), device), config, batch),
        }
        wall: dict[str, list[float]] = {name: [] for name in steps}
        cpu: dict[str, list[float]] = {name: [] for name in steps}
        for round_number in range(rounds + 1):
            for name in sorted(steps, reverse=bool(round_number % 2)):
                seconds, cpu_seconds = _seconds(steps[name], device)
                wall[name].append(seconds)
                cpu[name].append(cpu_seconds)
    return {
        "trainer_tokens_per_s": tokens / statistics.median(wall["trainer"][1:]),
        "bare_tokens_per_s": tokens / statistics.median(wall["bare"][1:]),
        "shared_prefix_tokens_per_s": tokens / statistics.median(wall["shared"][1:]),
        "ratio": _ratio(wall, "trainer", "bare"),
        "cpu_ratio": _ratio(cpu, "trainer", "bare"),
        "shared_prefix_gain": _ratio(wall, "shared", "trainer"),
        "cpu_shared_prefix_gain": _ratio(cpu, "shared", "trainer"),
        "aim": AIM,
        "batch_samples": len(batch),
        "batch_tokens": tokens,
        "rounds": rounds,
        "device": str(trainer.policy.device),
    }


def _ratio(seconds: dict[str, list[float]], name: str, base: str) -> float:
    """Median over rounds of the speed of ``name`` in units of that of ``base``; the first round warms up."""
    rounds = zip(seconds[name][1:], seconds[base][1:], strict=True)
    return statistics.median(theirs / ours for ours, theirs in rounds)


def _bare_loop(policy: Policy, config: LearnerConfig, batch: list[TrainSample]) -> Callable[[], None]:
    """Return one optimiser step of the plainest loop that trains on ``batch``, everything prepared beforehand."""
    import torch

    from actors.policy.logprobs import micro_batches, padding_allowance

    model = policy.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=config.betas, weight_decay=0.0, fused=True)
    sizes = [sample.prompt_ids.size + sample.token_ids.size for sample in batch]
    parts = micro_batches(sizes, config.micro_batch_tokens, padding_allowance(policy.device))
    prepared = [_prepared([batch[i] for i in part], policy) for part in parts]
    total = sum(int(places.shape[0]) for _, places, _, _ in prepared)

    def step() -> None:
        optimizer.zero_grad()
        for ids, places, targets, advantages in prepared:
            hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            logits = model.lm_head(hidden.flatten(0, 1)[places])
            logprobs = torch.log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0]
            (-(logprobs * advantages).sum() / total).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip or float("inf"))
        optimizer.step()

    return step


def _prepared(samples: list[TrainSample], policy: Policy) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ids (b, t), flat places of the states that predict a response token, its ids and its advantages."""
    import torch

    longest = max(sample.prompt_ids.size + sample.token_ids.size for sample in samples)
    ids = np.zeros((len(samples), longest), dtype=np.int64)
    places, targets, advantages = [], [], []
    for row, sample in enumerate(samples):
        p, n = sample.prompt_ids.size, sample.token_ids.size
        ids[row, : p + n] = np.concatenate((sample.prompt_ids, sample.token_ids))
        places.append(row * longest + np.arange(p - 1, p + n - 1))
        targets.append(sample.token_ids.astype(np.int64))
        advantages.append(np.full(n, sample.advantage, dtype=np.float32))
    flat = (np.concatenate(places), np.concatenate(targets), np.concatenate(advantages))
    a, b, c = (torch.from_numpy(values).to(policy.device) for values in flat)
    return torch.from_numpy(ids).to(policy.device), a, b, c


def _batch(tasks: int, samples: int, seed: int) -> list[TrainSample]:
    """Return groups of rollouts of lengths as they come, with plausible log-probs and advantages of both signs."""
    from actors.learner.sample import TrainSample

    rng = np.random.default_rng(seed)
    batch = []
    for task in range(tasks):
        prompt = rng.integers(3, 90, int(rng.integers(10, 81))).astype(np.int32)
        for i in range(samples):
            length = int(np.clip(rng.lognormal(np.log(12), 0.6), 1, 128))
            batch.append(
                TrainSample(
                    id=f"{task}.{i}",
                    prompt_ids=prompt,
                    token_ids=rng.integers(3, 90, length).astype(np.int32),
                    loss_mask=np.ones(length, dtype=np.uint8),
                    logprobs=np.full(length, -4.5, dtype=np.float32),
                    advantage=float(rng.normal()),
                    versions=np.zeros(length, dtype=np.int32),
                )
            )
    return batch


def _tiny(folder: Path, device: str) -> Policy:
    from actors.policy.model import load_policy
    from actors.policy.tiny import write_tiny_policy

    if not (folder / "config.json").exists():
        write_tiny_policy(folder)
    return load_policy(folder, device)


def _seconds(step: Callable[[], object], device: str) -> tuple[float, float]:
    """Return seconds on the clock and of the processor that a step took."""
    import torch

    started, cpu_started = time.perf_counter(), time.process_time()
    step()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - started, time.process_time() - cpu_started


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print(json.dumps(run(rounds=options.rounds, device=options.device), indent=2))


if __name__ == "__main__":
    main()
