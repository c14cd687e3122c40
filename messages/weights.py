"""WeightManifest: which weights are current, how to know that they are whole, and where their bytes are."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from messages.record import Identifier, Record, registered
from messages.task import Value


class WeightSource(Value):
    """One place where the bytes are. ``file``: a path on ``host``; ``jetstream``: ask on ``location`` for a blob."""

    kind: Literal["file", "jetstream"]
    host: str = Field(description="machine id that can reach a file; empty for jetstream")
    location: str


@registered
class WeightManifest(Record):
    """One broadcast version. Readers order manifests by (epoch, version) and refuse one that goes back."""

    schema_name: ClassVar[str] = "weight_manifest"

    epoch: int = Field(ge=0, description="grows by one at each start of a learner")
    version: int = Field(ge=0, description="optimiser steps that led here")
    digest: str = Field(pattern=r"^xxh3-128:[0-9a-f]{32}$", description="of the whole safetensors file")
    size_bytes: int = Field(ge=1)
    sources: tuple[WeightSource, ...] = Field(min_length=1, description="nearest first")
    batch_id: Identifier | None = None
    published_s: float = Field(description="Unix time")
