"""Prompt/response pairs for SFT: a source's train tasks, shown by a demonstrator who may be noisy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random

from actors.domains.registry import open_source


def demonstrations(seed: int, source: str = "demo", noise: float = 0.0, level: int = 0) -> Iterator[tuple[str, str]]:
    """Yield (prompt, response) without end, from train tasks only.

    Args:
        seed: another seed, other tasks and other mistakes.
        source: a name that ``open_source`` knows.
        noise: probability, in [0, 1], of a plausible wrong response.
        level: the difficulty.
    """
    opened = open_source(source)
    rng = Random(seed)
    for task in opened.tasks(sys.maxsize, seed, "train", level=level):
        yield "".join(message.content for message in task.messages), opened.demonstration(task, rng, noise)
