"""How many digits an unevaluated expression would have, so that a tower of powers is refused before it is computed."""

from __future__ import annotations

import math
from typing import Any

MAX_DIGITS = 5_000
"""More digits than any answer has; computing them still takes milliseconds."""

_HUGE = 1e18


def digits(expression: Any) -> float:
    """An upper estimate of the decimal digits of the largest integer in a sympy expression and its parts.

    Only integer arithmetic is looked at (powers, factorials, binomials, products): it is what sympy evaluates exactly,
    however long it takes. Anything else counts as its largest part; what is no expression counts as 0.
    """
    return min(_digits(expression), _HUGE)


def _digits(expression: Any) -> float:
    parts = getattr(expression, "args", None)
    if parts is None:
        return 0.0
    if not parts:
        return _of_number(expression)
    sizes = [_digits(part) for part in parts]
    kind = type(expression).__name__
    if kind == "Pow":
        return max(*sizes, _value(sizes[1]) * max(sizes[0], 0.5))
    if kind in ("factorial", "factorial2", "gamma", "binomial", "subfactorial"):
        return max(*sizes, 0.0, _value(sizes[0]) * max(sizes[0], 0.5))
    if kind in ("Mul", "Product"):
        return sum(sizes)
    return max(sizes)


def _value(digits_: float) -> float:
    """The largest number of so many digits."""
    return _HUGE if digits_ >= 18 else 10.0**digits_


def _of_number(expression: Any) -> float:
    if not getattr(expression, "is_Number", False) or not getattr(expression, "is_finite", False):
        return 0.0
    if getattr(expression, "is_Rational", False):
        return math.log10(max(abs(int(expression.p)), int(expression.q), 1))
    found = abs(float(expression))
    return math.log10(found) if 1 < found < math.inf else 0.0
