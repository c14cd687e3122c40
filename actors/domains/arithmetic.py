"""Arithmetic: sums, differences and products of small whole numbers, exact to the digit."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from actors.domains.domain import Domain, Problem


class Arithmetic(Domain):
    """``Compute 37+45=``; a higher level has more digits."""

    name = "arithmetic"
    n_levels: ClassVar[int] = 3
    phrases = ("Compute ",)

    def problem(self, rng: Random, level: int) -> Problem:
        """Draw a sum, a difference that is not negative, or a product with one small factor."""
        large, small = ((99, 9), (99, 99), (999, 999))[level]
        sign = rng.choice("+-*")
        if sign == "*":
            a, b = rng.randint(0, 9 * (1 + 3 * level)), rng.randint(0, 9)
            return self._stated(a, sign, b, a * b)
        a, b = rng.randint(0, large), rng.randint(0, small)
        if sign == "+":
            return self._stated(a, sign, b, a + b)
        a, b = max(a, b), min(a, b)
        return self._stated(a, sign, b, a - b)

    @staticmethod
    def _stated(a: int, sign: str, b: int, result: int) -> Problem:
        return Problem(prompt=f"Compute {a}{sign}{b}=", answer=str(result), metadata={"sign": sign})
