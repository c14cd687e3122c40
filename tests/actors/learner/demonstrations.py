"""Builders and pair sources that the SFT tests name by dotted path."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

seen: list[tuple[int, dict[str, Any]]] = []
"""(seed, options) of every call of :func:`copies`."""


def build(folder: Path, seed: int) -> None:
    from tests.actors.learner.conftest import small_policy

    small_policy(seed).export(folder)


def copies(seed: int, **options: Any) -> Iterator[tuple[str, str]]:
    """Repeat the letter: learnable in a few steps."""
    seen.append((seed, options))
    rng = random.Random(seed)
    while True:
        letter = rng.choice("abcd")
        yield f"say {letter}:", letter * options.get("times", 2)


def two(seed: int) -> Iterator[tuple[str, str]]:
    yield from [("a", "b"), ("c", "d")]


def crooked(seed: int) -> Iterator[Any]:
    yield "no pair"
