"""Task and Turn: what a user asks the policy to learn from, and one piece of generation work made of it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from messages.record import Identifier, Name, Record, registered

Split = Literal["train", "eval"]


class Value(BaseModel):
    """A value inside a record: immutable, unknown fields ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ChatMessage(Value):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class VerifierSpec(Value):
    """How a task is checked: the name of a verifier plugin and its options."""

    kind: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    options: dict[str, Any] = Field(default_factory=dict)


class Sampling(Value):
    """How tokens are drawn. ``temperature`` 0 is greedy; ``top_p`` 1 and ``top_k`` 0 keep the whole distribution."""

    max_tokens: int = Field(ge=1, description="tokens per sample at most")
    temperature: float = Field(default=1.0, ge=0.0, le=10.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0)
    seed: int | None = None


@registered
class Task(Record):
    """A prompt with its domain, its level, and how it is verified. Users publish tasks; they stay on the bus."""

    schema_name: ClassVar[str] = "task"

    id: Identifier
    domain: Name
    messages: tuple[ChatMessage, ...] = Field(min_length=1)
    verifier: VerifierSpec
    answer: str | None = None
    level: int = Field(default=0, ge=0)
    split: Split = "train"
    max_tokens: int | None = Field(default=None, ge=1, description="tokens per sample at most, if below the run's own")
    metadata: dict[str, Any] = Field(default_factory=dict)


@registered
class Turn(Record):
    """Generate ``n`` samples for one conversation prefix: the work of exactly one generator."""

    schema_name: ClassVar[str] = "turn"

    id: Identifier
    group_id: Identifier
    task_id: Identifier
    task_seq: int = Field(ge=1, description="where the task stands in the tasks stream")
    domain: Name
    level: int = Field(default=0, ge=0)
    messages: tuple[ChatMessage, ...] = Field(min_length=1)
    n: int = Field(ge=1, le=4096, description="samples of the group")
    sampling: Sampling
    deadline_s: float | None = Field(default=None, gt=0, description="seconds a sample may take from its start")
    admitted_epoch: int = Field(default=0, ge=0, description="weight epoch when the curriculum admitted the group")
    admitted_version: int = Field(ge=0, description="weight version when the curriculum admitted the group")
