"""The pipeline's ceiling: a generator and a learner that compute nothing, so that only the hops are left.

Compared with raw nats-py (publish, fetch, acknowledge, one process) on parcels of the same size.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

from ops.bench._trial import run_once, scratch, steps_of, trained_per_s


def run(steps: int = 40, group_size: int = 16, groups_per_batch: int = 32) -> dict[str, Any]:
    """Rollouts per second through all hops, and parcels per second of raw nats-py."""
    with scratch() as folder:
        tasks = folder / "tasks.jsonl"
        lines = (f'{{"id": "t{i}", "prompt": "say 1", "answer": "1"}}' for i in range(500))
        tasks.write_text("\n".join(lines) + "\n")
        changes: dict[str, Any] = {
            "run": {"max_steps": steps},
            "training": {"group_size": group_size, "groups_per_batch": groups_per_batch, "max_lag": 4},
            "domains": {"ones": {"verifier": {"kind": "exact"}, "files": [str(tasks)]}},
            "generator": {"engine": "null"},
            "learner": {"engine": "null"},
            "evaluator": {"count": 0},
        }
        run_once(folder, "null", _only_domain(changes))
        rate = trained_per_s(steps_of(folder, "null"))
        raw = asyncio.run(_raw(folder / "raw", group_size))
    return {"rollouts_per_s": rate, "groups_per_s": rate / group_size, "raw_parcels_per_s": raw}


def _only_domain(changes: dict[str, Any]) -> dict[str, Any]:
    import tomllib

    from ops.bench._trial import DEMO

    others: dict[str, Any] = dict.fromkeys(tomllib.loads(DEMO.read_text())["domains"])
    return changes | {"domains": others | changes["domains"]}


async def _raw(folder: Path, group_size: int, seconds: float = 4.0) -> float:
    """Publish, fetch and acknowledge parcels of a group's size, as fast as one process can."""
    import nats
    from nats.js.api import RetentionPolicy

    from runtime.server import NatsServer

    server = NatsServer(folder)
    await server.start()
    connection = await nats.connect(server.url)
    try:
        stream = connection.jetstream()
        await stream.add_stream(name="raw", subjects=["raw"], retention=RetentionPolicy.WORK_QUEUE)
        reader = await stream.pull_subscribe("raw", "reader")
        payload, done, began = b"x" * (600 * group_size), 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            await asyncio.gather(*(stream.publish("raw", payload) for _ in range(32)))
            for message in await reader.fetch(32):
                await message.ack()
                done += 1
        return done / (time.perf_counter() - began)
    finally:
        await connection.close()
        await server.stop()


def main() -> int:
    """Print both rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    found = run(arguments.steps)
    print(
        f"null run: {found['rollouts_per_s']:.0f} rollouts/s = {found['groups_per_s']:.0f} groups/s through five hops"
    )
    print(f"raw nats-py: {found['raw_parcels_per_s']:.0f} parcels/s published, fetched and acknowledged (one hop)")
    print(f"ratio per hop: {5 * found['groups_per_s'] / found['raw_parcels_per_s']:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
