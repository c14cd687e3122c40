"""Checks of answers: the registry of verifier plugins and the process pool that runs them. No torch in here."""

from actors.verifiers.check import CORRECT, Check
from actors.verifiers.errors import (
    BadVerifierOptions,
    CodeNotTrusted,
    InvalidScore,
    MissingAnswer,
    MissingPackage,
    UnknownVerifier,
    VerifierError,
)
from actors.verifiers.plugin import Verifier, VerifierOptions
from actors.verifiers.registry import VERIFIERS, build, validate, verifier_kinds

__all__ = [
    "CORRECT",
    "VERIFIERS",
    "BadVerifierOptions",
    "Check",
    "CodeNotTrusted",
    "InvalidScore",
    "MissingAnswer",
    "MissingPackage",
    "UnknownVerifier",
    "Verifier",
    "VerifierError",
    "VerifierOptions",
    "build",
    "validate",
    "verifier_kinds",
]
