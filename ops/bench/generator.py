"""Generator throughput: the continuous-batching engine against transformers generate(), in one process.

Promise: both sides get the same model, the same prompts, the same number of new tokens per prompt and one thread; both
sample at temperature 1 and deliver a log-prob per token. Lengths are forced (no end token), log-normal or all equal.
generate() takes the prompts 32 at a time and must run each batch to its longest; only tokens that were asked for count.
The two sides take turns, round by round, and the figures are medians. Beside the wall clock stands the process's CPU
time, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Work:
    """What both sides do: prompts (int32 ids) and how many new tokens each of them gets."""

    prompts: list[npt.NDArray[np.int32]]
    lengths: list[int]

    @property
    def tokens(self) -> int:
        """Useful new tokens."""
        return sum(self.lengths)


class Seconds(NamedTuple):
    """How long one side took: on the wall clock, and of the process's CPU time."""

    wall: float
    cpu: float

    @classmethod
    def since(cls, start: Seconds) -> Seconds:
        """What has passed since `start`, which `Seconds.now()` gave."""
        now = cls.now()
        return cls(now.wall - start.wall, now.cpu - start.cpu)

    @classmethod
    def now(cls) -> Seconds:
        """Read both clocks."""
        return cls(time.perf_counter(), time.process_time())


def run(
    *,
    model: str | None = None,
    n_prompts: int = 256,
    batch: int = 32,
    max_sequences: int = 32,
    median: int = 24,
    sigma: float = 0.8,
    longest: int = 192,
    rounds: int = 3,
    seed: int = 0,
    threads: int = 1,
    fast: bool | None = None,
) -> dict[str, Any]:
    """Measure both sides on log-normal and on equal lengths; useful tokens per second and their ratios.

    model: a Hugging Face folder, or None for a random 0.9M Llama. n_prompts prompts of 16 to 64 tokens. batch:
    generate()'s batch. max_sequences: the engine's rows. median, sigma, longest: of the log-normal lengths [tokens].
    """
    import torch

    torch.set_num_threads(threads)
    policy = _load(model)
    policy.train(False)
    rng = np.random.default_rng(seed)
    vocabulary = int(policy.config.vocab_size)
    prompts = [rng.integers(0, vocabulary, rng.integers(16, 65)).astype(np.int32) for _ in range(n_prompts)]
    drawn = np.exp(rng.normal(math.log(median), sigma, n_prompts))
    works = {
        "log-normal": Work(prompts, np.clip(drawn, 1, longest).astype(int).tolist()),
        "equal": Work(prompts, [2 * median] * n_prompts),
    }
    result: dict[str, Any] = {
        "parameters": sum(p.numel() for p in policy.parameters()),
        "n_prompts": n_prompts,
        "batch": batch,
        "max_sequences": max_sequences,
        "threads": threads,
        "cases": {},
    }
    for name, work in works.items():
        _generate(policy, Work(prompts[:batch], [4] * batch), batch, seed)
        _engine(policy, Work(prompts[:batch], [4] * batch), max_sequences, seed, fast)
        sides: dict[str, list[Seconds]] = {"generate": [], "engine": []}
        for turn in range(rounds):
            sides["generate"].append(_generate(policy, work, batch, seed + turn))
            sides["engine"].append(_engine(policy, work, max_sequences, seed + turn, fast))
        result["cases"][name] = _figures(work, sides["generate"], sides["engine"])
    return result


def _figures(work: Work, generate: list[Seconds], engine: list[Seconds]) -> dict[str, Any]:
    """Medians over the rounds; a ratio above 1 says that the engine is faster."""
    ratios = [g.wall / e.wall for g, e in zip(generate, engine, strict=True)]
    return {
        "useful_tokens": work.tokens,
        "generate_tokens_per_s": work.tokens / statistics.median(s.wall for s in generate),
        "engine_tokens_per_s": work.tokens / statistics.median(s.wall for s in engine),
        "generate_tokens_per_cpu_s": work.tokens / statistics.median(s.cpu for s in generate),
        "engine_tokens_per_cpu_s": work.tokens / statistics.median(s.cpu for s in engine),
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "ratio_cpu": statistics.median(g.cpu / e.cpu for g, e in zip(generate, engine, strict=True)),
    }


def _load(folder: str | None) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    if folder is not None:
        loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return loaded
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=384,
        vocab_size=160,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
    )
    fresh: PreTrainedModel = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    return fresh


def _generate(model: PreTrainedModel, work: Work, batch: int, seed: int) -> Seconds:
    """What generate() takes for the work, `batch` prompts at a time, with log-probs."""
    import torch

    torch.manual_seed(seed)
    started = Seconds.now()
    with torch.inference_mode():
        for first in range(0, len(work.prompts), batch):
            prompts = work.prompts[first : first + batch]
            width = max(len(p) for p in prompts)
            ids = torch.zeros(len(prompts), width, dtype=torch.int64)
            mask = torch.zeros_like(ids)
            for row, prompt in enumerate(prompts):
                ids[row, width - len(prompt) :] = torch.from_numpy(prompt)
                mask[row, width - len(prompt) :] = 1
            generate: Any = model.generate
            out = generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=max(work.lengths[first : first + batch]),
                eos_token_id=None,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
            logprobs = torch.log_softmax(torch.stack(out.logits, dim=1).float(), dim=-1)
            logprobs.gather(-1, out.sequences[:, width:, None])
    return Seconds.since(started)


def _engine(model: PreTrainedModel, work: Work, max_sequences: int, seed: int, fast: bool | None) -> Seconds:
    """What the engine takes for the same work."""
    from actors.policy.engine import Request, SamplingParams, TorchEngine

    engine = TorchEngine(model, max_sequences=max_sequences, seed=seed, fast=fast)
    started = Seconds.now()
    for index, (prompt, length) in enumerate(zip(work.prompts, work.lengths, strict=True)):
        engine.submit(Request(str(index), prompt, 1, SamplingParams(max_tokens=length)))
    delivered = 0
    while not engine.idle:
        for done in engine.step():
            delivered += sum(len(sample.logprobs) for sample in done.samples)
    seconds = Seconds.since(started)
    if delivered != work.tokens:
        raise RuntimeError(f"bench generator: the engine delivered {delivered} tokens of {work.tokens}")
    return seconds


def table(result: dict[str, Any]) -> str:
    """Lay a result out for a terminal."""
    lines = [
        f"{result['parameters'] / 1e6:.2f}M parameters, {result['n_prompts']} prompts, {result['threads']} thread(s), "
        f"generate {result['batch']} at a time, engine {result['max_sequences']} rows; useful tokens per second",
        f"{'lengths':<12}{'generate':>10}{'engine':>10}{'ratio':>8}{'range':>14}   per CPU second: both, ratio",
    ]
    for name, case in result["cases"].items():
        low, high = case["ratio_range"]
        lines.append(
            f"{name:<12}{case['generate_tokens_per_s']:>10,.0f}{case['engine_tokens_per_s']:>10,.0f}"
            f"{case['ratio']:>8.2f}{f'{low:.2f} .. {high:.2f}':>14}   {case['generate_tokens_per_cpu_s']:>10,.0f}"
            f"{case['engine_tokens_per_cpu_s']:>10,.0f}{case['ratio_cpu']:>7.2f}"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Parse arguments, run, print the table."""
    parser = argparse.ArgumentParser(prog="busrl bench generator", description=run.__doc__)
    parser.add_argument("--model", help="Hugging Face folder (default: a random 0.9M Llama)")
    parser.add_argument("--prompts", type=int, default=256, dest="n_prompts")
    parser.add_argument("--batch", type=int, default=32, help="generate()'s batch")
    parser.add_argument("--max-sequences", type=int, default=32, help="the engine's rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--generic", action="store_true", help="the engine without its Llama decoder")
    options = vars(parser.parse_args(argv))
    fast = False if options.pop("generic") else None
    print(table(run(fast=fast, **options)))


if __name__ == "__main__":
    main()
