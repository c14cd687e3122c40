"""The generator's knobs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from runtime.config import ActorSection


class GeneratorConfig(ActorSection):
    """How samples are made."""

    engine: Literal["torch", "null"] = Field(
        default="torch",
        description="torch: embedded, any Hugging Face causal LM; null: answers without a model, to measure the rest",
    )
    max_sequences: int = Field(
        default=256, ge=1, le=65_536, description="sequences decoded together; more wait their turn inside the engine"
    )
    kv_tokens: int | None = Field(
        default=None, ge=1, description="bound of the KV cache in tokens; none is max_sequences whole contexts"
    )
    max_prefill_tokens: int = Field(default=4096, ge=1, description="padded prompt tokens read in one step")

    def actor_path(self, kind: str) -> str:
        """The null engine is an actor of its own, which needs no torch."""
        return "actors.generator.null:NullGenerator" if self.engine == "null" else super().actor_path(kind)
