"""Prompt/response pairs for SFT: a source's train tasks, shown by a demonstrator who may be noisy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

from actors.domains.registry import open_procedural


def demonstrations(
    seed: int,
    source: str = "demo",
    noise: float = 0.0,
    shares: Mapping[str, float] | None = None,
    lessons: float = 0.5,
    level: int = 0,
) -> Iterator[tuple[str, str]]:
    """Yield (prompt, response) without end, from train tasks only.

    Args:
        seed: another seed, other tasks and other mistakes.
        source: a name that ``open_source`` knows.
        noise: probability, in [0, 1], of a plausible wrong response.
        shares: how often a domain is shown, relative to 1 for the domains not named.
        lessons: share of problems that show more at once than a task asks, where a domain has such.
        level: the difficulty.

    Raises:
        UnknownSource: there is no such source.
        BadSourceOption: a share is for a domain that the source does not have.
    """
    opened = open_procedural(source)
    weights = {**dict.fromkeys(opened.domains, 1.0), **(shares or {})}
    streams = {domain: opened.lessons(domain, seed, lessons, level=level) for domain in weights}
    rng = Random(seed)
    while True:
        domain = rng.choices(list(weights), list(weights.values()))[0]
        task = next(streams[domain])
        yield "".join(message.content for message in task.messages), opened.demonstration(task, rng, noise)
