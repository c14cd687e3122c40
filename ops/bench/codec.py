"""What a parcel costs: microseconds to encode and to decode a rollout, and a group of them, with what they weigh."""

from __future__ import annotations

import argparse
import timeit
from typing import Any

import numpy as np

from messages import Rollout, decode, encode

SHAPES = ((1, 0), (1, 100), (1, 1_000), (1, 32_000), (16, 1_000))
"""Rollouts in the parcel, tokens of each."""


def rollout(n_tokens: int, index: int = 0, n: int = 1) -> Rollout:
    """A rollout of ``n_tokens`` random tokens after a prompt of 200."""
    rng = np.random.default_rng(index)
    return Rollout(
        id=f"group.{index}",
        group_id="group",
        task_id="task",
        task_seq=1,
        domain="sums",
        index=index,
        n=n,
        prompt_ids=rng.integers(0, 50_000, 200, dtype=np.int32),
        token_ids=rng.integers(0, 50_000, n_tokens, dtype=np.int32),
        logprobs=-rng.random(n_tokens, dtype=np.float32),
        loss_mask=np.ones(n_tokens, dtype=np.uint8),
        versions=np.full(n_tokens, 7, dtype=np.int32),
        epoch=1,
        temperature=1.0,
        finish_reason="stop",
        response="x" * (4 * n_tokens),
        generator="generator-0",
        started_s=0.0,
        finished_s=1.0,
    )


def run(repeats: int = 5) -> list[dict[str, Any]]:
    """Measure; the best of ``repeats`` rounds of at least 0.1 s each, in microseconds per parcel."""
    results = []
    for n, n_tokens in SHAPES:
        records = [rollout(n_tokens, index, n) for index in range(n)]
        payload, header = encode(records), records[0].schema_header()
        results.append(
            {
                "n_rollouts": n,
                "n_tokens": n_tokens,
                "payload_bytes": len(payload),
                "encode_us": _best_us(lambda records=records: encode(records), repeats),
                "decode_us": _best_us(lambda header=header, payload=payload: decode(header, payload), repeats),
            }
        )
    return results


def _best_us(call: Any, repeats: int) -> float:
    timer = timeit.Timer(call)
    loops, _ = timer.autorange()
    loops = max(1, loops // 2)
    return min(timer.repeat(repeats, loops)) / loops * 1e6


def table(results: list[dict[str, Any]]) -> str:
    """Lay the results out for a terminal."""
    lines = [f"{'rollouts':>8} {'tokens':>8} {'bytes':>10} {'encode us':>10} {'decode us':>10}"]
    lines += [
        f"{row['n_rollouts']:>8} {row['n_tokens']:>8} {row['payload_bytes']:>10} {row['encode_us']:>10.1f} "
        f"{row['decode_us']:>10.1f}"
        for row in results
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(table(run()))


if __name__ == "__main__":
    main()
