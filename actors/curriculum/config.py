"""The curriculum's knobs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from runtime.config import ActorSection


class CurriculumConfig(ActorSection):
    """Which task is next, and how much may be under way."""

    count: Literal[1] = Field(default=1, description="there is one curriculum")
    sampler: Literal["uniform"] = Field(
        default="uniform", description="domains by their weights, tasks of a domain each once per pass in random order"
    )
    max_open_groups: int = Field(
        default=1024, ge=1, le=100_000, description="groups under way at most, whatever the lag bound would allow"
    )
