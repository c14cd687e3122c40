"""The replay buffer's knobs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from runtime.config import ActorSection


class ReplayConfig(ActorSection):
    """How many finished groups may wait for the learner."""

    count: Literal[1] = Field(default=1, description="there is one replay buffer")
    max_groups: int = Field(
        default=1024, ge=1, le=4096, description="groups held at most; the oldest gives way when it is full"
    )
