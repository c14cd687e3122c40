"""Exact: the response is the answer, character for character, apart from the white space around it."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from actors.verifiers.check import Check
from actors.verifiers.plugin import Verifier, VerifierOptions, reference
from messages import Task


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


Regex = Annotated[str, AfterValidator(_compiles)]
"""A Python regular expression, as text."""


class ExactOptions(VerifierOptions):
    """How texts are compared."""

    ignore_case: bool = Field(default=False, description="compare case-folded")
    collapse_whitespace: bool = Field(default=False, description="every run of white space counts as one blank")
    extract: Regex | None = Field(
        default=None, description="regular expression; its last match in the response is the answer (group 1, if any)"
    )


class Exact(Verifier[ExactOptions]):
    """Compares text."""

    Options: ClassVar[type[ExactOptions]] = ExactOptions

    def check(self, task: Task, response: str) -> Check:
        """1 for the same text, 0 for another."""
        found: str | None = response
        if self.options.extract is not None:
            found = extracted(re.compile(self.options.extract), response)
        if found is None:
            return Check.of(0.0, "no answer found in the response")
        return Check.of(float(self._normal(found) == self._normal(reference(task))))

    def _normal(self, text: str) -> str:
        text = " ".join(text.split()) if self.options.collapse_whitespace else text.strip()
        return text.casefold() if self.options.ignore_case else text


def extracted(pattern: re.Pattern[str], response: str) -> str | None:
    """The last match of ``pattern`` in ``response``: its first group where there is one; None without a match."""
    last = last_match(pattern, response)
    if last is None:
        return None
    return last.group(1) if pattern.groups else last.group()


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last of the matches that do not overlap, or None."""
    last = None
    for match in pattern.finditer(text):
        last = match
    return last
