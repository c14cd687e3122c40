"""The section ``[verifier]`` of the run file: how many checks run at once, and for how long."""

from __future__ import annotations

from pydantic import Field

from runtime.config import ActorSection


class VerifierConfig(ActorSection):
    """How answers are checked: each verifier actor runs its checks in child processes of its own."""

    workers: int = Field(default=1, ge=1, le=256, description="check processes per verifier actor: checks at once")
    time_limit_s: float = Field(
        default=10.0, gt=0, description="seconds one check may take; then it is killed: an infrastructure error"
    )
    retries: int = Field(
        default=1, ge=0, le=100, description="how often a check that failed is tried again, in a fresh process"
    )
    memory_limit_bytes: int = Field(
        default=4 << 30, ge=0, description="address space of a check process in bytes (Linux); 0 is no bound"
    )
