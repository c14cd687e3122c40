"""What a run file may say: every section and field with its unit, default and bounds. Nothing else is accepted.

The actors' own sections are classes of the actors room, found by dotted path when a run file is read, so this module
knows no actor and imports no torch. Reading a file is :mod:`runtime.runfile`'s job.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, StringConstraints

from messages.record import Name
from messages.task import VerifierSpec
from messages.topics import EVERY_ACTOR

GIB = 1 << 30
EMBEDDED = "embedded"

ACTOR_KINDS = EVERY_ACTOR
"""Every kind of actor of a run, in the order in which they drain."""


class Section(BaseModel):
    """A section of the run file: immutable, strictly typed, and closed (an unknown key is an error)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ActorSection(Section):
    """What every actor's section has. An actor's own class (``actors.<kind>.config:<Kind>Config``) adds its knobs."""

    count: int = Field(
        default=1,
        ge=0,
        le=256,
        description="processes that `busrl up` starts; 0 starts none (they join with `busrl actor`)",
    )
    threads: int = Field(default=1, ge=1, le=1024, description="CPU threads per process (OMP_NUM_THREADS)")

    def actor_path(self, kind: str) -> str:
        """Dotted path of the class that a process of this kind runs; a section with several engines chooses here."""
        return f"actors.{kind}.actor:{kind.capitalize()}"


class RunSection(Section):
    """What the run is called and when it ends."""

    name: Name = Field(description="name of its folder and of its subjects on the bus: a-z, 0-9, '-' and '_'")
    dir: str = Field(default="runs", min_length=1, description="folder of run folders, relative to where you stand")
    seed: int = Field(default=0, ge=0, description="seed of everything that is drawn; another seed is another run")
    max_steps: int = Field(default=0, ge=0, description="stop at this weight version; 0 runs until stopped")
    time_limit_s: float = Field(default=0.0, ge=0, description="stop after this many seconds; 0 is no limit")
    final_evaluation_s: float = Field(
        default=600.0, ge=0, description="seconds to wait for the evaluation of the last version after the last step"
    )
    trust_code: bool = Field(
        default=False,
        description="allow `python` verifiers, which run your function unsandboxed in the verifier",
    )


class BusSection(Section):
    """Where the messages travel."""

    url: str = Field(
        default=EMBEDDED,
        pattern=r"^(embedded|(nats|tls)://\S+)$",
        description="'embedded' starts an own nats-server in the run folder; nats://HOST:PORT uses yours",
    )
    port: int = Field(default=0, ge=0, le=65_535, description="loopback port of the embedded server; 0 is a free one")
    store_max_bytes: int = Field(default=32 * GIB, ge=1, description="bound of the embedded server's store in bytes")
    sync: str = Field(
        default="2m",
        pattern=r"^(always|[1-9]\d*(ms|s|m|h))$",
        description="time between syncs of the embedded server to disk; 'always' survives a power cut, 10x slower",
    )
    credentials: str | None = Field(
        default=None, description="JSON file {kind: {user, password}} for an external bus; none connects without"
    )


class PolicySection(Section):
    """The model that is trained."""

    path: str = Field(min_length=1, description="Hugging Face model folder, relative to the run file")
    device: Annotated[str, StringConstraints(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = Field(
        default="auto", description="auto (CUDA where there is a GPU, else CPU), cpu, cuda or cuda:N"
    )
    dtype: Literal["float32", "bfloat16", "auto"] = Field(
        default="float32", description="of the weights in the actors; auto is bfloat16 on CUDA and float32 on CPU"
    )


class TrainingSection(Section):
    """How generation and training are coupled."""

    group_size: int = Field(default=16, ge=1, le=4096, description="samples per task and dispatch")
    groups_per_batch: int = Field(default=32, ge=1, le=65_536, description="groups that one optimiser step eats")
    max_lag: int = Field(
        default=2, ge=0, le=1000, description="weight versions that a trained token may be old; 0 is synchronous"
    )
    batches_ahead: int = Field(
        default=1, ge=1, le=1000, description="composed batches that may wait for the learner; 1 when max_lag is 0"
    )


class SamplingSection(Section):
    """How rollouts are sampled."""

    max_tokens: int = Field(default=256, ge=1, description="tokens per sample at most")
    temperature: float = Field(default=1.0, gt=0, le=10, description="of the training samples")
    deadline_s: float | None = Field(default=None, gt=0, description="seconds a sample may take; none is no limit")


class SourceSection(Section):
    """A procedural source of tasks that `busrl up` publishes itself at the start."""

    name: str = Field(min_length=1, description="a source of actors.domains, such as 'arithmetic' or 'gym:…'")
    n_train: int = Field(default=2000, ge=1, description="training tasks")
    n_eval: int = Field(default=200, ge=0, description="held-out tasks")
    options: dict[str, Any] = Field(default_factory=dict, description="the source's own options")


class VerifierSection(Section):
    """How answers are checked."""

    kind: str = Field(min_length=1, max_length=64, description="name of a verifier plugin")
    options: dict[str, Any] = Field(default_factory=dict, description="the plugin's own options")

    def spec(self) -> VerifierSpec:
        """The same as a record that travels with a task."""
        return VerifierSpec(kind=self.kind, options=self.options)


class DomainSection(Section):
    """One domain: where its tasks come from and how much of the training it gets."""

    weight: float = Field(default=1.0, ge=0, description="share of the dispatched groups, relative to other domains")
    verifier: VerifierSection | None = Field(default=None, description="default for tasks that name no verifier")
    max_tokens: int | None = Field(default=None, ge=1, description="tokens per sample, if below [sampling] max_tokens")
    source: SourceSection | None = Field(default=None, description="procedural tasks; excludes files and eval_files")
    files: tuple[str, ...] = Field(default=(), description="JSONL or Parquet files of training tasks")
    eval_files: tuple[str, ...] = Field(default=(), description="JSONL or Parquet files of held-out tasks")


class TelemetrySection(Section):
    """What is written down about the run. The standard OTEL_* variables win over this section."""

    traces: bool = Field(default=True, description="write spans")
    sample_ratio: float = Field(default=1.0, ge=0, le=1, description="share of tasks that are traced")
    interval_s: float = Field(default=5.0, gt=0, description="seconds between two exports of metrics")


class RunConfig(Section):
    """A whole run file. Actor sections hold the actors' own classes; the annotation here is what they share."""

    run: RunSection
    bus: BusSection = Field(default_factory=BusSection)
    policy: PolicySection
    training: TrainingSection = Field(default_factory=TrainingSection)
    sampling: SamplingSection = Field(default_factory=SamplingSection)
    domains: dict[Name, DomainSection] = Field(min_length=1, description="[domains.NAME], at least one")
    curriculum: SerializeAsAny[ActorSection] = Field(default_factory=ActorSection)
    generator: SerializeAsAny[ActorSection] = Field(default_factory=ActorSection)
    verifier: SerializeAsAny[ActorSection] = Field(default_factory=ActorSection)
    reward: SerializeAsAny[ActorSection] = Field(default_factory=ActorSection)
    replay: SerializeAsAny[ActorSection] = Field(default_factory=ActorSection)
    learner: SerializeAsAny[ActorSection] = Field(default_factory=ActorSection)
    evaluator: SerializeAsAny[ActorSection] = Field(default_factory=ActorSection)
    telemetry: TelemetrySection = Field(default_factory=TelemetrySection)

    def section(self, kind: str) -> ActorSection:
        """The section of an actor kind.

        Raises:
            KeyError: there is no such kind.
        """
        if kind not in ACTOR_KINDS:
            raise KeyError(kind)
        section: ActorSection = getattr(self, kind)
        return section

    def counts(self) -> dict[str, int]:
        """Processes per actor kind."""
        return {kind: self.section(kind).count for kind in ACTOR_KINDS}


def load(path: Path | str) -> RunConfig:
    """Read and check a run file; see :func:`runtime.runfile.load`.

    Raises:
        ConfigError: it can not be used as it is; the message is one line.
    """
    from runtime.runfile import load as read  # it needs the classes above

    return read(path)
