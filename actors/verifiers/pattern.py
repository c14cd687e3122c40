"""Regex: the response matches a pattern."""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import Field

from actors.verifiers.check import Check
from actors.verifiers.exact import Regex
from actors.verifiers.plugin import Verifier, VerifierOptions
from messages import Task


class PatternOptions(VerifierOptions):
    """What has to match, and how."""

    pattern: Regex = Field(description="Python regular expression")
    full: bool = Field(default=True, description="the whole stripped response has to match; else any part of it")
    ignore_case: bool = Field(default=False, description="letters match in either case")


class Pattern(Verifier[PatternOptions]):
    """Matches text."""

    Options: ClassVar[type[PatternOptions]] = PatternOptions
    compares = False

    def __init__(self, options: PatternOptions) -> None:
        super().__init__(options)
        self._pattern = re.compile(options.pattern, re.IGNORECASE if options.ignore_case else 0)

    def check(self, task: Task, response: str) -> Check:
        """1 for a match, 0 for none."""
        match = self._pattern.fullmatch if self.options.full else self._pattern.search
        return Check.of(float(match(response.strip()) is not None))
