"""Heartbeat, Alert, DeadLetter, Control and Snapshot: how the actors' own life travels."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Literal

from pydantic import Field

from messages.record import Identifier, Name, Record, registered


class ActorState(StrEnum):
    """The life of an actor."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"
    STOPPED = "stopped"


@registered
class Heartbeat(Record):
    """An actor says that it lives, what it does and how it fares. Counters grow over one life; gauges are now."""

    schema_name: ClassVar[str] = "heartbeat"

    kind: Name
    instance: Name
    host: str
    pid: int
    state: ActorState
    started_s: float = Field(description="Unix time")
    sent_s: float = Field(description="Unix time")
    in_flight: int = Field(ge=0, description="inputs being handled")
    loop_lag_s: float = Field(ge=0, description="worst delay of the event loop since the last beat")
    rss_bytes: int = Field(ge=0)
    counters: dict[str, float] = Field(default_factory=dict)
    gauges: dict[str, float] = Field(default_factory=dict)


@registered
class Alert(Record):
    """Something a person should look at."""

    schema_name: ClassVar[str] = "alert"

    name: Name
    severity: Literal["info", "warning", "critical"]
    summary: str = Field(max_length=1024)
    actor: str
    raised_s: float = Field(description="Unix time")
    labels: dict[str, str] = Field(default_factory=dict)


class DeadReason(StrEnum):
    """Why a message was given up."""

    INVALID = "invalid"
    """It does not decode or validate."""
    REJECTED = "rejected"
    """It is well-formed but can never be handled (such as a prompt longer than the context)."""
    BUG = "bug"
    """The handler failed in a way that it does not know."""
    EXHAUSTED = "exhausted"
    """Every delivery failed or ended with the handler's death."""


@registered
class DeadLetter(Record):
    """A message that no actor could handle, kept whole so that it can be read and replayed."""

    schema_name: ClassVar[str] = "dead_letter"

    id: Identifier
    topic: Name
    subject: str
    stream_seq: int = Field(ge=0)
    actor: str = Field(description="instance that gave it up")
    reason: DeadReason
    error: str = Field(max_length=2048)
    traceback: str = Field(default="", max_length=16_384)
    deliveries: int = Field(ge=0)
    group_id: str | None = Field(default=None, description="group ids of the message, comma-separated")
    headers: dict[str, str] = Field(default_factory=dict)
    payload: bytes = b""
    died_s: float = Field(description="Unix time")


@registered
class Control(Record):
    """An order to actors: of one kind, or to all when ``kind`` is None."""

    schema_name: ClassVar[str] = "control"

    command: Literal["pause", "resume", "drain"]
    kind: Name | None = None
    sent_s: float = Field(description="Unix time")


@registered
class Snapshot(Record):
    """State that an actor wants back after a restart, as a small JSON document."""

    schema_name: ClassVar[str] = "snapshot"

    kind: Name
    saved_s: float = Field(description="Unix time")
    state: str = Field(description="JSON")
