"""Key-value retrieval: find the values of several keys in a context much longer than the answer."""

from __future__ import annotations

import string
from random import Random
from typing import ClassVar

from actors.domains.domain import Domain, Problem

N_QUERIES = 3


class Retrieval(Domain):
    """``Given q7 b3 k0, look up k q:`` wants ``k0q7``; a higher level has more pairs and longer values.

    Each context carries several queries: a small model learns to look up much earlier that way.
    """

    name = "retrieval"
    n_levels: ClassVar[int] = 3
    phrases = ("Given ", "look up ")

    def problem(self, rng: Random, level: int) -> Problem:
        """Draw pairs of a letter and a value, and the letters to look up."""
        n_pairs = (12, 18, 26)[level]
        n_digits = (1, 1, 2)[level]
        keys = rng.sample(string.ascii_lowercase, n_pairs)
        values = {key: "".join(rng.choice(string.digits) for _ in range(n_digits)) for key in keys}
        queries = rng.sample(keys, N_QUERIES)
        pairs = " ".join(key + values[key] for key in keys)
        return Problem(
            prompt=f"Given {pairs}\nlook up {''.join(queries)}:",
            answer="".join(key + values[key] for key in queries),
            metadata={"n_pairs": n_pairs, "queries": queries},
        )
