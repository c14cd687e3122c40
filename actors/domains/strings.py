"""String manipulation: one named operation on one short random word."""

from __future__ import annotations

import string
from collections.abc import Callable
from random import Random
from typing import ClassVar

from actors.domains.domain import Domain, Problem

OPERATIONS: dict[str, Callable[[str], str]] = {
    "Reverse": lambda word: word[::-1],
    "Sort the letters of": lambda word: "".join(sorted(word)),
    "Write in capitals": str.upper,
    "Drop the first letter of": lambda word: word[1:],
    "Swap the first and last letter of": lambda word: word[-1] + word[1:-1] + word[0],
}


class Strings(Domain):
    """``Reverse: abcd``; a higher level has longer words."""

    name = "strings"
    n_levels: ClassVar[int] = 3
    phrases = tuple(f"{operation}: " for operation in OPERATIONS)

    def problem(self, rng: Random, level: int) -> Problem:
        """Draw an operation and a word of 3 to 5 letters (two more for each level)."""
        operation = rng.choice(list(OPERATIONS))
        length = rng.randint(3 + 2 * level, 5 + 2 * level)
        word = "".join(rng.choice(string.ascii_lowercase) for _ in range(length))
        return Problem(
            prompt=f"{operation}: {word}\n",
            answer=OPERATIONS[operation](word),
            metadata={"operation": operation, "word": word},
        )
