"""Numeric: the response is mathematically the same as the answer.

Plain numbers are compared here, exactly; everything else (fractions, roots, sets, equations, LaTeX) by math-verify. Its
own time limits are signals, which only work in a main thread, so they are off: the process that runs a check is killed
from outside instead. An expression whose value would have too many digits to be computed is wrong, not a hang.
"""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Literal

from pydantic import Field

from actors.verifiers.check import Check
from actors.verifiers.errors import BadReference, MissingPackage
from actors.verifiers.exact import last_match
from actors.verifiers.magnitude import MAX_DIGITS, digits
from actors.verifiers.plugin import Verifier, VerifierOptions, reference
from messages import Task

Extraction = Literal["whole", "boxed", "last_number"]

MAX_CHARS = 1000
"""A longer text is no answer to a numeric question; parsing it could take seconds."""

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?(?:\s*/\s*\d+)?"
_PLAIN = re.compile(rf"[+-]?\s*{_NUMBER}")
_IN_TEXT = re.compile(r"(?:(?<![\w.)])[+-])?(?<![\w.])" + _NUMBER.replace(r"\d+\.?\d*", r"\d+(?:\.\d+)?"))
_BOXED = "\\boxed{"
_DELIMITED = re.compile(r"\$|\\boxed|\\\(|\\\[")


class NumericOptions(VerifierOptions):
    """Where the answer is in the response, and how near it has to be."""

    extraction: Extraction = Field(
        default="whole",
        description="'whole' response, content of the last \\boxed{}, or 'last_number' in the text",
    )
    tolerance: float | None = Field(
        default=None,
        ge=0,
        description="absolute difference between two numbers that still counts as equal; none: equal when "
        "math-verify says so (exact; decimals to 6 places)",
    )


class Numeric(Verifier[NumericOptions]):
    """Compares mathematical objects."""

    Options: ClassVar[type[NumericOptions]] = NumericOptions

    def __init__(self, options: NumericOptions) -> None:
        """Load the library before any time limit runs.

        Raises:
            MissingPackage: math-verify is not installed.
        """
        super().__init__(options)
        try:
            import math_verify  # noqa: F401
        except ImportError as missing:
            raise MissingPackage("verifier 'numeric' needs math-verify: pip install 'busrl[domains]'") from missing
        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are off

    def check(self, task: Task, response: str) -> Check:
        """1 for an equivalent answer, 0 for another or none.

        Raises:
            BadReference: the task's own answer can not be read.
        """
        wanted = extract(self.options.extraction, reference(task)) or reference(task).strip()
        found = extract(self.options.extraction, response)
        if not found:
            return Check.of(0.0, f"no answer found in the response ({self.options.extraction})")
        if len(found) > MAX_CHARS:
            return Check.of(0.0, f"an answer of {len(found)} characters is not read (at most {MAX_CHARS})")
        one, other = plain_number(wanted), plain_number(found)
        if one is not None and other is not None:
            if abs(one - other) <= Fraction(self.options.tolerance or 0):
                return Check.of(1.0)
            if self.options.tolerance is not None or (one.denominator == 1 and other.denominator == 1):
                return Check.of(0.0, f"{found} is not {wanted}")
        return self._compare(task, wanted, found)

    def _compare(self, task: Task, wanted: str, found: str) -> Check:
        gold = _parsed(wanted)
        if not gold:
            raise BadReference(f"task {task.id}: its answer {wanted!r:.200} is not a mathematical expression")
        try:
            target = _parsed(found)
        except (RecursionError, ValueError, TypeError) as error:
            return Check.of(0.0, f"the answer can not be read: {type(error).__name__}")
        if not target:
            return Check.of(0.0, "the answer is not a mathematical expression")
        if max(map(digits, target)) > MAX_DIGITS:
            return Check.of(0.0, f"a number of more than {MAX_DIGITS} digits is not computed")
        if max(map(digits, gold)) > MAX_DIGITS:
            raise BadReference(f"task {task.id}: its answer {wanted!r:.200} has more than {MAX_DIGITS} digits")
        equal, log = self._equal(gold, target)
        return Check.of(float(equal), log)

    def _equal(self, gold: list[Any], target: list[Any]) -> tuple[bool, str]:
        from math_verify import verify

        try:
            if self.options.tolerance is not None and _is_number(gold[0]) and _is_number(target[0]):
                return bool(abs(complex(gold[0].evalf()) - complex(target[0].evalf())) <= self.options.tolerance), ""
            return bool(verify(gold, target, timeout_seconds=None, raise_on_error=True)), ""
        except MemoryError:
            raise
        except Exception as error:  # comparing things of different kinds raises a dozen unrelated classes in sympy
            return False, f"not comparable: {type(error).__name__}: {error}"


def extract(extraction: Extraction, text: str) -> str | None:
    """The part of a text that is the answer, stripped; None when there is no such part."""
    text = text.replace("\N{MINUS SIGN}", "-")
    if extraction == "whole":
        return text.strip()
    if extraction == "boxed":
        return last_boxed(text)
    last = last_match(_IN_TEXT, text)
    return None if last is None else last.group()


def last_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` whose braces are balanced, stripped; None when there is none."""
    start = text.rfind(_BOXED)
    while start >= 0:
        depth, at = 1, start + len(_BOXED)
        for end in range(at, len(text)):
            depth += (text[end] == "{") - (text[end] == "}")
            if depth == 0:
                return text[at:end].strip()
        start = text.rfind(_BOXED, 0, start)
    return None


def plain_number(text: str) -> Fraction | None:
    """The exact value of a decimal number or a quotient of two, such as ``-1,234.5``, ``2e3`` or ``3/4``; else None."""
    text = text.strip()
    if len(text) > MAX_CHARS or not _PLAIN.fullmatch(text):
        return None
    numerator, _, denominator = "".join(text.replace(",", "").split()).partition("/")
    try:
        return Fraction(numerator) / Fraction(denominator or 1)
    except (ValueError, ZeroDivisionError):
        return None


@lru_cache(maxsize=1024)
def _parsed(text: str) -> list[Any]:
    from math_verify import parse

    wrapped = text if _DELIMITED.search(text) else f"{_BOXED}{text}}}"
    no_limit: Any = None  # what the library documents, though its annotation says int
    return list(parse(wrapped, fallback_mode="no_fallback", parsing_timeout=no_limit, raise_on_error=True))


def _is_number(expression: Any) -> bool:
    return bool(getattr(expression, "is_number", False))
