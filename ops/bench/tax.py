"""The bus tax: the same synchronous loop in one process with plain lists, and as actors on the bus with max_lag 0.

Both generate and train by turns, never at once, so what the second takes longer is what messages, processes, durability
and telemetry cost.
"""

from __future__ import annotations

import argparse
import time
import tomllib
from pathlib import Path
from typing import Any

from ops.bench._trial import DEMO, run_once, scratch, steps_of, trained_per_s

SKIPPED_STEPS = 3


def run(steps: int = 20, seed: int = 0) -> dict[str, float]:
    """Rollouts trained per second of the plain loop and of the bus, after the first steps of each."""
    with scratch() as folder:
        changes = {
            "run": {"max_steps": steps, "seed": seed},
            "training": {"max_lag": 0},
            "evaluator": {"count": 0},
        }
        summary = run_once(folder, "bus", changes)
        bus = trained_per_s(steps_of(folder, "bus"), SKIPPED_STEPS)
    return {
        "plain_per_s": plain_loop(steps, seed),
        "bus_per_s": bus,
        "bus_s_per_rollout": summary["bus_s_per_rollout"],
    }


def plain_loop(steps: int, seed: int, run_file: Path = DEMO) -> float:
    """Rollouts trained per second of one process that calls the same parts directly."""
    import torch

    from actors.curriculum.sampler import UniformSampler
    from actors.learner.trainer import Trainer
    from actors.policy.engine import Request, SamplingParams, TorchEngine
    from actors.policy.model import load_policy
    from runtime import runfile

    torch.set_num_threads(1)
    config: Any = runfile.load(run_file)
    learning, serving = load_policy(config.policy.path, "cpu"), load_policy(config.policy.path, "cpu")
    trainer = Trainer(learning, config.learner, seed)
    engine = TorchEngine(serving.model, max_sequences=config.generator.max_sequences, seed=seed)
    tasks = _tasks(run_file)
    sampler = UniformSampler({name: domain.weight for name, domain in config.domains.items()}, seed)
    for place, task in enumerate(tasks):
        sampler.add(task.domain, place)
    trained, began = 0, 0.0
    for step in range(steps):
        if step == SKIPPED_STEPS:
            trained, began = 0, time.perf_counter()
        batch: list[Any] = []
        groups = 0
        while groups < config.training.groups_per_batch:
            wanted = config.training.groups_per_batch - groups
            drawn = [tasks[place] for _, place in (sampler.draw() or ("", 0) for _ in range(wanted))]
            sampling = SamplingParams(max_tokens=config.sampling.max_tokens, stop_token_ids=serving.stop_ids)
            for number, task in enumerate(drawn):
                prompt = serving.encode([message.model_dump() for message in task.messages])
                engine.submit(Request(f"{step}.{groups}.{number}", prompt, config.training.group_size, sampling))
            made = _generate(engine)
            for number, task in enumerate(drawn):
                samples = made[f"{step}.{groups}.{number}"]
                group = _rewarded(task, samples, serving)
                if group:
                    batch += group
            groups = len(batch) // config.training.group_size
        result = trainer.step(batch)
        engine.load_weights(learning.named_tensors(), 1, result.version)
        trained += len(batch)
    return trained / (time.perf_counter() - began)


def _tasks(run_file: Path) -> list[Any]:
    from actors.domains.registry import open_source

    table = tomllib.loads(run_file.read_text())
    found: list[Any] = []
    for domain in table["domains"].values():
        source = domain["source"]
        opened = open_source(source["name"], **source.get("options", {}))
        found += list(opened.tasks(500, 0, "train"))
    return found


def _generate(engine: Any) -> dict[str, Any]:
    done: dict[str, Any] = {}
    while not engine.idle:
        for completed in engine.step():
            done[completed.request_id] = completed.samples
    return done


def _rewarded(task: Any, samples: Any, policy: Any) -> list[Any]:
    """A group's training samples, or none when it carries no signal."""
    import numpy as np

    from actors.learner.sample import TrainSample
    from actors.reward import advantage
    from actors.verifiers.registry import build

    verifier = build(task)
    rewards = [verifier.check(task, policy.decode(sample.token_ids)).pass_rate for sample in samples]
    if not advantage.has_signal(rewards):
        return []
    prompt = policy.encode([message.model_dump() for message in task.messages])
    return [
        TrainSample(
            f"{task.id}.{index}",
            prompt,
            sample.token_ids,
            np.ones(len(sample.token_ids), dtype=np.uint8),
            sample.logprobs,
            float(value),
            sample.versions,
        )
        for index, (sample, value) in enumerate(zip(samples, advantage.grpo(rewards), strict=True))
    ]


def main() -> int:
    """Print both rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found = run(arguments.steps, arguments.seed)
    print(f"one process, plain lists: {found['plain_per_s']:.1f} rollouts trained/s")
    print(f"actors on the bus, max_lag 0: {found['bus_per_s']:.1f} rollouts trained/s")
    ratio = found["bus_per_s"] / found["plain_per_s"]
    print(f"ratio {ratio:.3f} (tax {1 - ratio:.1%})")
    print(f"bus seconds per rollout, all actors together: {found['bus_s_per_rollout']:.5f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
