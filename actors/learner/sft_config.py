"""What `busrl sft` reads: a starting policy, where pairs come from, and how long to train. Free of torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from actors.learner.schedule import Schedule

DOTTED_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
DottedPath = Annotated[str, StringConstraints(pattern=DOTTED_PATH)]


class SftStage(BaseModel):
    """A stretch of SFT with its own data options. Give either ``steps`` or ``fraction``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int | None = Field(default=None, ge=1, description="optimiser steps of this stage")
    fraction: float | None = Field(default=None, gt=0, le=1, description="share of the run's steps, 0 to 1")
    options: dict[str, Any] = Field(
        default_factory=dict, description="options for the pair generator in this stage, e.g. {noise = 0.5}"
    )

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.fraction is None):
            raise ValueError("a stage needs exactly one of steps and fraction")
        return self


class SftConfig(BaseModel):
    """Supervised fine-tuning of a policy on prompt/response pairs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str = Field(
        description="model folder, or 'module:function' that writes a fresh one when called (folder, seed=seed)"
    )
    out: Path = Field(description="folder to write; an existing model folder there is replaced at the end")
    files: tuple[Path, ...] = Field(
        default=(),
        description="JSONL files; a line has 'prompt' and 'response', or 'messages' whose assistant turns are trained",
    )
    generator: DottedPath | None = Field(
        default=None,
        description="'module:function', called (seed, **options); yields (prompt, response), prompt a text or messages",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="options for the generator in every stage")
    stages: tuple[SftStage, ...] = Field(
        default=(), description="stretches in order; none means one with the options above"
    )
    steps: int | None = Field(
        default=None, ge=1, description="optimiser steps in all; left out where every stage gives its own steps"
    )
    batch_size: int = Field(default=32, ge=1, description="pairs per optimiser step")
    max_tokens: int | None = Field(
        default=None, ge=2, description="tokens of prompt and response; longer pairs are skipped (default: the context)"
    )
    micro_batch_tokens: int = Field(default=2048, ge=1, description="padded tokens per forward pass")
    optimizer: Literal["muon", "adamw"] = Field(
        default="muon", description="muon: Muon on the layers' matrices, AdamW on the rest; adamw: AdamW on all"
    )
    lr: float = Field(default=3e-3, gt=0, description="peak learning rate")
    schedule: Schedule = Field(default="linear", description="after warm-up: constant, or linear or cosine down to 0")
    warmup_steps: int = Field(default=50, ge=0, description="steps of linear warm-up")
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled weight decay, on matrices")
    betas: tuple[float, float] = Field(default=(0.9, 0.95), description="AdamW's two decay rates, each in [0, 1)")
    grad_clip: float | None = Field(default=1.0, gt=0, description="gradient 2-norm to clip at; none: not clipped")
    seed: int = Field(default=0, ge=0, description="of the fresh policy, the pairs and their order")
    device: str = Field(default="auto", description="auto (CUDA where there is a GPU), cpu, cuda or cuda:N")
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="of the forward pass; the weights that are trained stay float32"
    )
    threads: int = Field(default=1, ge=0, description="torch threads; 0 leaves torch's choice")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.files) == (self.generator is not None):
            raise ValueError("give exactly one of files (JSONL) and generator ('module:function')")
        if self.files and (self.options or any(stage.options for stage in self.stages)):
            raise ValueError("options belong to a generator: files have none")
        if ":" in self.policy and not Path(self.policy).exists() and not re.match(DOTTED_PATH, self.policy):
            raise ValueError(f"policy {self.policy!r} is neither a folder nor 'module:function'")
        return self

    @model_validator(mode="after")
    def _lengths_add_up(self) -> Self:
        for beta in self.betas:
            if not 0 <= beta < 1:
                raise ValueError(f"betas {self.betas}: each is in [0, 1)")
        fractions = [stage.fraction for stage in self.stages if stage.fraction is not None]
        if fractions and len(fractions) < len(self.stages):
            raise ValueError("stages mix steps and fraction: use one of them for all")
        if fractions and abs(sum(fractions) - 1) > 1e-6:
            raise ValueError(f"the stages' fractions sum to {sum(fractions):g}, not 1")
        explicit = sum(stage.steps or 0 for stage in self.stages)
        if explicit and self.steps is not None and self.steps != explicit:
            raise ValueError(f"steps = {self.steps}, but the stages have {explicit}: leave out steps")
        if not explicit and self.steps is None:
            raise ValueError("steps is missing: how many optimiser steps in all")
        if self.schedule != "constant" and self.warmup_steps >= self.total_steps:
            raise ValueError(f"warmup_steps = {self.warmup_steps} leaves nothing of {self.total_steps} steps")
        return self

    @property
    def total_steps(self) -> int:
        """Optimiser steps in all."""
        return self.steps if self.steps is not None else sum(stage.steps or 0 for stage in self.stages)

    def plan(self) -> list[tuple[int, dict[str, Any]]]:
        """Return (steps, generator options) of each stage, in order; the steps sum to ``total_steps``."""
        if not self.stages:
            return [(self.total_steps, dict(self.options))]
        total, done, before, plan = self.total_steps, 0, 0.0, []
        for stage in self.stages:
            before += stage.fraction or 0.0
            end = done + stage.steps if stage.steps is not None else round(total * before)
            plan.append((end - done, {**self.options, **stage.options}))
            done = end
        return plan
