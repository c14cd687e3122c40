"""The reward's knobs."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from actors.reward.advantage import Estimator
from runtime.config import ActorSection


class RewardConfig(ActorSection):
    """How scores become a reward, and rewards an advantage."""

    count: Literal[1] = Field(default=1, description="there is one reward actor")
    objectives: dict[str, float] = Field(
        default_factory=dict,
        description="weight per objective of the verdicts; empty: the reward is the verdict's pass rate",
    )
    advantage: Estimator = Field(
        default="grpo", description="group advantage: (r - mean)/std, r - mean, or r minus the mean of the others"
    )

    @model_validator(mode="after")
    def _weights_mean_something(self) -> Self:
        if self.objectives and not any(self.objectives.values()):
            raise ValueError("objectives: every weight is 0, so that every reward would be 0; give one another weight")
        return self
