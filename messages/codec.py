"""Records to bytes and back: a parcel is a msgpack list of maps, all of one schema, all of one task's trace.

A whole group of rollouts travels as one parcel, so that a hop costs one message and not sixteen.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import msgpack
from pydantic import ValidationError

from messages.errors import MalformedPayload
from messages.record import Record, record_type

MAX_RECORDS = 65_536


def encode(records: Sequence[Record]) -> bytes:
    """Encode records of one schema as a parcel.

    Raises:
        ValueError: no record, more than ``MAX_RECORDS``, records of more than one schema, or a value that msgpack has
            no form for.
    """
    if not 0 < len(records) <= MAX_RECORDS:
        raise ValueError(f"a parcel has 1 to {MAX_RECORDS} records, not {len(records)}")
    schema = type(records[0])
    if any(type(record) is not schema for record in records):
        raise ValueError("a parcel has records of one schema only")
    try:
        packed: bytes = msgpack.packb([record.model_dump() for record in records], use_bin_type=True)
    except (TypeError, OverflowError, ValueError) as error:
        raise ValueError(f"{schema.schema_header()} can not be encoded: {error}") from error
    return packed


def decode(schema_header: str | None, payload: bytes) -> list[Record]:
    """Decode a parcel.

    Args:
        schema_header: value of the ``Busrl-Schema`` header.
        payload: what :func:`encode` made.

    Raises:
        UnknownSchema: the header names nothing that is readable here.
        MalformedPayload: the payload is not what the header says.
    """
    record = record_type(schema_header)
    try:
        items: Any = msgpack.unpackb(
            payload,
            raw=False,
            strict_map_key=True,
            max_array_len=min(MAX_RECORDS, len(payload)),  # each item takes a byte at least: a longer one is a lie
            max_map_len=len(payload) // 2,
            max_ext_len=0,
            timestamp=0,
        )
    except Exception as error:  # msgpack raises a dozen unrelated classes on hostile bytes
        raise MalformedPayload(f"payload of {len(payload)} bytes is not msgpack: {error}") from error
    if not isinstance(items, list) or not items:
        raise MalformedPayload(f"payload is {type(items).__name__}, expected a non-empty list of {record.schema_name}")
    try:
        return [record.model_validate(item) for item in items]
    except ValidationError as error:
        raise MalformedPayload(f"{record.schema_header()}: {first_error(error)}") from error


def first_error(error: ValidationError) -> str:
    """The first thing that is wrong, in one line: field, what was found, what is expected."""
    details = error.errors(include_url=False, include_context=False)
    first = details[0]
    where = ".".join(str(part) for part in first["loc"]) or "(whole record)"
    found = reprlib.repr(first.get("input"))  # bounded in depth and length, as the input may be hostile
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return f"{where}: {first['msg']}; found {found[:120]}{more}"
