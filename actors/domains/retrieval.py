"""Key-value retrieval: find the values of several keys in a context much longer than the answer."""

from __future__ import annotations

import string
from random import Random
from typing import ClassVar

from actors.domains.domain import Domain, Problem

N_QUERIES = 3


class Retrieval(Domain):
    """``Given q7 b3 k0, look up k q:`` wants ``k0q7``; a higher level has more pairs and longer values."""

    name = "retrieval"
    n_levels: ClassVar[int] = 3
    phrases = ("Given ", "look up ")

    def problem(self, rng: Random, level: int) -> Problem:
        """Draw pairs of a letter and a value, and the letters to look up."""
        return self._drawn(rng, level, N_QUERIES)

    def lesson(self, rng: Random, level: int) -> Problem:
        """Draw a problem that looks up every key: a small model learns to look up much earlier that way."""
        return self._drawn(rng, level, None)

    @staticmethod
    def _drawn(rng: Random, level: int, n_queries: int | None) -> Problem:
        n_pairs = rng.randint(*((4, 14), (14, 20), (20, 26))[level])
        n_digits = (1, 1, 2)[level]
        keys = rng.sample(string.ascii_lowercase, n_pairs)
        values = {key: "".join(rng.choice(string.digits) for _ in range(n_digits)) for key in keys}
        queries = rng.sample(keys, n_queries or n_pairs)
        pairs = " ".join(key + values[key] for key in keys)
        return Problem(
            prompt=f"Given {pairs}\nlook up {''.join(queries)}:",
            answer="".join(key + values[key] for key in queries),
            metadata={"n_pairs": n_pairs, "queries": queries},
        )
