"""Weight broadcast: from the start of publishing to applied in tensors, against a plain copy of the same file.

``file`` is the path on one host (shared memory where there is some); ``jetstream`` is for whoever can not reach it.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from ops.bench._trial import scratch

SIZES_MIB = (4, 64, 256)


async def measure(folder: Path, mib: int, rounds: int) -> dict[str, float]:
    """Seconds for one size: copy, file, jetstream (medians)."""
    import torch

    from actors.policy.weight_bytes import from_bytes, to_chunks
    from messages import WeightManifest, derive
    from messages.topics import WEIGHTS
    from runtime import weights
    from runtime.bus import Bus
    from runtime.declare import declare
    from runtime.server import NatsServer

    server = NatsServer(folder / f"bus-{mib}")
    await server.start()
    learner, generator = await Bus.connect(server.url, "bench"), await Bus.connect(server.url, "bench")
    await declare(learner)
    tensors = {f"layer.{i}": torch.randn(1 << 18) for i in range(mib)}
    target = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    home = weights.weights_folder(folder / f"run-{mib}")
    writer = weights.WeightWriter(home, keep=2)
    serving = asyncio.create_task(writer.serve_requests(learner))
    found: dict[str, list[float]] = {"copy": [], "file": [], "jetstream": []}
    try:
        for number, (how, host) in enumerate(
            h for _ in range(rounds) for h in (("file", None), ("jetstream", "other"))
        ):
            arrived = generator.follow(WEIGHTS, "new")
            waiting = asyncio.ensure_future(anext(arrived))
            await asyncio.sleep(0.3)  # until the reader stands
            began = time.perf_counter()
            manifest = await asyncio.to_thread(writer.write, to_chunks(tensors), 1, number)
            await learner.publish(WEIGHTS, [manifest], "1", msg_id=derive("bench", mib, number))
            seen: WeightManifest = (await waiting).record
            payload, _ = await weights.fetch(generator, seen, host)
            for name, tensor in from_bytes(payload).items():
                target[name].copy_(tensor)
            found[how].append(time.perf_counter() - began)
            await arrived.aclose()
            path = home / f"0001-{number:08d}.safetensors"
            began = time.perf_counter()
            shutil.copyfile(path, path.with_suffix(".copy"))
            found["copy"].append(time.perf_counter() - began)
            path.with_suffix(".copy").unlink()
    finally:
        serving.cancel()
        await learner.close()
        await generator.close()
        await server.stop()
        shutil.rmtree(home, ignore_errors=True)
    return {how: statistics.median(times) for how, times in found.items()}


def run(sizes: tuple[int, ...] = SIZES_MIB, rounds: int = 3) -> list[dict[str, Any]]:
    """One row per size in MiB."""
    with scratch() as folder:
        return [{"mib": mib, **asyncio.run(measure(folder, mib, rounds))} for mib in sizes]


def main() -> int:
    """Print seconds, and how many plain copies they are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print("  MiB   copy s   file s  (x copy)   jetstream s  (x copy)")
    for row in run(rounds=arguments.rounds):
        print(
            f"{row['mib']:5d}  {row['copy']:7.4f}  {row['file']:7.4f}  {row['file'] / row['copy']:7.1f}x"
            f"   {row['jetstream']:10.4f}  {row['jetstream'] / row['copy']:8.1f}x"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
