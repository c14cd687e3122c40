"""Arithmetic: sums, differences and products of small whole numbers, exact to the digit."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from actors.domains.domain import Domain, Problem


class Arithmetic(Domain):
    """``Compute 37+45=``; a higher level has more digits and more terms."""

    name = "arithmetic"
    n_levels: ClassVar[int] = 3
    phrases = ("Compute ",)

    def problem(self, rng: Random, level: int) -> Problem:
        """Draw a two-number sum or difference, or a product plus a number."""
        top = 10 ** (level + 2) - 1
        small = 9 if level == 0 else 10**level * 2
        form = rng.choice("+-*")
        if form == "*":
            a, b, c = rng.randint(2, small), rng.randint(2, 9), rng.randint(0, small)
            return self._stated(f"{a}*{b}+{c}", a * b + c)
        a, b = rng.randint(0, top), rng.randint(0, top)
        return self._stated(f"{a}{form}{b}", a + b if form == "+" else a - b)

    @staticmethod
    def _stated(expression: str, result: int) -> Problem:
        return Problem(prompt=f"Compute {expression}=", answer=str(result), metadata={"expression": expression})
