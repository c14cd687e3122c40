"""The errors of the messages room: one tree, each naming what was found and what would be right."""

from __future__ import annotations


class MessageError(ValueError):
    """Anything that is wrong with a message; the base of this room's errors."""


class UnknownSchema(MessageError):
    """The schema header is missing, malformed, names no known record, or a major version from the future."""


class MalformedPayload(MessageError):
    """The payload is not msgpack, not a list of records, or a record does not validate."""


class InvalidName(MessageError):
    """A run, domain or task name that can not be part of a subject."""
