"""The learner's settings: every knob with unit and default; a pair that means nothing is refused. Free of torch."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from actors.learner.schedule import Schedule
from runtime.config import ActorSection, Section

OverCap = Literal["mask", "truncate"]


class CheckpointConfig(Section):
    """When the learner saves itself."""

    every_steps: int = Field(
        default=10, ge=1, description="versions between checkpoints; what lies between is trained again after a crash"
    )
    keep: int = Field(default=2, ge=1, description="newest checkpoints to keep; older ones are removed")


class LearnerConfig(ActorSection):
    """Decoupled PPO with capped importance weights, AdamW, and how a batch is fed through the model."""

    count: Literal[1] = Field(default=1, description="there is one learner")
    engine: Literal["torch", "null"] = Field(
        default="torch", description="torch: one device; null: takes steps without a gradient, to measure the rest"
    )
    lr: float = Field(default=3e-4, gt=0, description="peak learning rate")
    schedule: Schedule = Field(
        default="constant", description="after warm-up: constant, or linear or cosine down to 0 at total_steps"
    )
    warmup_steps: int = Field(default=5, ge=0, description="optimiser steps of linear warm-up")
    total_steps: int | None = Field(
        default=None, ge=1, description="optimiser steps at which linear or cosine reaches 0; not with constant"
    )
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled weight decay, on matrices")
    betas: tuple[float, float] = Field(default=(0.9, 0.999), description="AdamW's two decay rates, each in [0, 1)")
    grad_clip: float | None = Field(default=1.0, gt=0, description="gradient 2-norm to clip at; none: not clipped")
    clip_low: float = Field(default=0.2, gt=0, lt=1, description="ratio to the proximal policy at least 1 - clip_low")
    clip_high: float = Field(default=0.28, gt=0, description="ratio to the proximal policy at most 1 + clip_high")
    dual_clip: float | None = Field(
        default=3.0, gt=1, description="for a negative advantage A the loss is at most -dual_clip A; none: unbounded"
    )
    importance_cap: float | None = Field(
        default=5.0, gt=0, description="cap of the weight proximal/behaviour per token; none: no cap"
    )
    over_cap: OverCap = Field(
        default="mask", description="a token over the cap: mask (weight 0) or truncate (weight importance_cap)"
    )
    epochs_per_batch: int = Field(
        default=1, ge=1, description="optimiser steps on each batch; with 1 the ratio is 1 and no clip applies"
    )
    micro_batch_tokens: int = Field(
        default=2048, ge=1, description="padded tokens per forward pass; a longer rollout goes alone"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="of the forward pass; the weights that are trained stay float32"
    )
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="when the learner saves itself")

    def actor_path(self, kind: str) -> str:
        """The null engine is a learner whose trainer learns nothing."""
        return "actors.learner.null:NullLearner" if self.engine == "null" else super().actor_path(kind)

    @model_validator(mode="after")
    def _schedule_fits(self) -> Self:
        if self.schedule == "constant" and self.total_steps is not None:
            raise ValueError(
                "total_steps has no effect with schedule = constant: leave it out or take linear or cosine"
            )
        if self.schedule != "constant" and self.total_steps is None:
            raise ValueError(f"schedule = {self.schedule} needs total_steps, the step at which the rate reaches 0")
        if self.total_steps is not None and self.warmup_steps >= self.total_steps:
            raise ValueError(f"warmup_steps = {self.warmup_steps} leaves nothing of total_steps = {self.total_steps}")
        for beta in self.betas:
            if not 0 <= beta < 1:
                raise ValueError(f"betas = {self.betas}: each is in [0, 1)")
        return self

    @model_validator(mode="after")
    def _objective_knobs_apply(self) -> Self:
        if self.epochs_per_batch == 1:
            for name in ("clip_low", "clip_high", "dual_clip"):
                if self._changed(name):
                    raise ValueError(
                        f"{name} has no effect with epochs_per_batch = 1, where the proximal policy is the one being "
                        f"trained and every ratio is 1: leave {name} out or raise epochs_per_batch"
                    )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(f"dual_clip = {self.dual_clip} must be above 1 + clip_high = {1 + self.clip_high}")
        if self.importance_cap is None and self._changed("over_cap"):
            raise ValueError("over_cap has no effect without importance_cap: set a cap or leave over_cap out")
        if self.importance_cap is not None and self.over_cap == "mask" and self.importance_cap < 1:
            raise ValueError(
                f"importance_cap = {self.importance_cap} with over_cap = mask drops every on-policy token (weight 1): "
                "use a cap of at least 1, or over_cap = truncate"
            )
        return self

    def _changed(self, name: str) -> bool:
        """Whether a knob differs from its default; a resolved configuration that is read again stays valid."""
        default: Any = type(self).model_fields[name].default
        return bool(getattr(self, name) != default)
