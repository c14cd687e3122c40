"""What can be wrong with a verifier: bad input of the task's author is one line; a broken check is never a score."""

from __future__ import annotations

from runtime.errors import UserError


class VerifierError(Exception):
    """A verifier can not be built or did not give a score; the base of this folder's errors."""


class UnknownVerifier(UserError, VerifierError):
    """No plugin has this name."""


class BadVerifierOptions(UserError, VerifierError):
    """A plugin has no such option, or not with this value."""


class MissingAnswer(UserError, VerifierError):
    """The plugin compares with the task's answer, and the task has none."""


class MissingPackage(UserError, VerifierError):
    """The plugin needs a package that is not installed."""


class CodeNotTrusted(UserError, VerifierError):
    """The task names a Python function, and the run does not allow that."""


class InvalidScore(VerifierError):
    """A plugin returned something that is not a score in [0, 1]."""


class BadReference(VerifierError):
    """The task's own answer can not be read, so no response can be compared with it."""


class PoolBroken(VerifierError):
    """Check processes die as soon as they start."""
