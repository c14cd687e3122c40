"""What comes back from the bus: a stored message's place, a parcel that was read, and how full a stream is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from messages import Record


@dataclass(frozen=True)
class Published:
    """Where a message is stored; ``duplicate`` when its id had been stored before."""

    seq: int
    duplicate: bool


@dataclass(frozen=True)
class Received:
    """A parcel read from a stream; ``time_s`` is when it was stored (Unix time), 0 when not known."""

    records: list[Record]
    seq: int
    subject: str
    headers: Mapping[str, str]
    time_s: float = 0.0

    @property
    def record(self) -> Any:
        """The parcel's first record."""
        return self.records[0]


@dataclass(frozen=True)
class StreamState:
    """How full a stream is."""

    messages: int
    bytes: int
    first_seq: int
    last_seq: int
