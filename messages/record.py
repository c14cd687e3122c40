"""What every record has in common: a schema name, a major version, and tolerance for optional fields of the future."""

from __future__ import annotations

import re
import reprlib
from typing import Annotated, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints

from messages.errors import InvalidName, UnknownSchema

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,63}$"

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""A run or domain name: it is a token of subjects and part of file names."""

Identifier = Annotated[str, StringConstraints(min_length=1, max_length=256)]
"""An id of a task, group, rollout or message."""

_SCHEMA_HEADER = re.compile(r"([a-z_]+)/([0-9]{1,9})")


class Record(BaseModel):
    """One typed message. Immutable; an unknown field is ignored (a newer peer's), a missing one is an error."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants", arbitrary_types_allowed=True)

    schema_name: ClassVar[str] = ""
    schema_version: ClassVar[int] = 1

    @classmethod
    def schema_header(cls) -> str:
        """The value of the ``Busrl-Schema`` header, such as ``rollout/1``."""
        return f"{cls.schema_name}/{cls.schema_version}"


RecordT = TypeVar("RecordT", bound=Record)

SCHEMAS: dict[str, type[Record]] = {}


def registered(record: type[RecordT]) -> type[RecordT]:
    """Class decorator: make a record known to the codec under its schema name."""
    SCHEMAS[record.schema_name] = record
    return record


def record_type(header: str | None) -> type[Record]:
    """The record class that a ``Busrl-Schema`` header names.

    Raises:
        UnknownSchema: the header is missing, malformed, unknown, or of another major version.
    """
    match = _SCHEMA_HEADER.fullmatch(header or "")
    if match is None:
        raise UnknownSchema(f"schema header {reprlib.repr(header)}, expected NAME/VERSION such as 'rollout/1'")
    name, version = match.group(1), int(match.group(2))
    record = SCHEMAS.get(name)
    if record is None:
        raise UnknownSchema(f"schema {name!r} is not known here; known: {', '.join(sorted(SCHEMAS))}")
    if version != record.schema_version:
        raise UnknownSchema(f"schema {header!r} is not readable here; this release reads {record.schema_header()!r}")
    return record


def check_name(name: str, what: str) -> str:
    """Return ``name`` if it can be a token of a subject.

    Raises:
        InvalidName: it can not; the message says what would be right.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise InvalidName(
            f"{what} {name!r} is not a valid name: use 1 to 64 of a-z, 0-9, '-' and '_', "
            "starting with a letter or digit"
        )
    return name
