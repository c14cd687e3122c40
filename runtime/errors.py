"""The errors of the runtime room. ``UserError`` is bad input: one clear line, exit code 2, no traceback."""

from __future__ import annotations


class UserError(Exception):
    """Something that the person who called can put right; the message says what, where, and what would be right."""


class ConfigError(UserError):
    """A run file that can not be used as it is."""


class BusError(Exception):
    """Something the bus did not do; the base of its errors."""


class BusUnreachable(UserError, BusError):
    """Nothing answers at the bus's address, or it refuses the credentials."""


class BusFull(BusError):
    """A stream is at its bound and stayed there past the deadline: back-pressure."""


class StreamMissing(BusError):
    """A stream or consumer of the table is not on the server, and stayed away past the deadline."""


class Forbidden(BusError):
    """The bus's user may not do this; trying again would not help."""


class DeclarationMismatch(UserError, BusError):
    """A stream or consumer exists with another configuration than this release's table has."""


class BlobGone(BusError):
    """A claim-checked payload is no longer there, or is damaged."""


class WeightsRefused(Exception):
    """A broadcast version that must not be served: torn, forged, stale or out of order."""


class Rejected(Exception):
    """Raised by a handler: this input is well-formed but can never be handled. It becomes a dead letter."""


class Retry(Exception):
    """Raised by a handler: this input could not be handled now; deliver it again after a back-off."""

    def __init__(self, message: str, *, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s
