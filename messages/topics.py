"""The one table of topics: what flows where, who may publish it, who may read it, and how much of it is kept.

Streams, consumers and credentials are all made from this table, so nothing can be on the bus that is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from messages.control import Alert, Control, DeadLetter, Heartbeat, Snapshot
from messages.learning import Batch, Evaluation, Experience, Outcome, Step
from messages.record import Record, check_name
from messages.rollout import Rollout, Verdict
from messages.task import Task, Turn
from messages.weights import WeightManifest

MIB = 1 << 20
GIB = 1 << 30
DAY_S = 86_400

EVERY_ACTOR = ("curriculum", "generator", "verifier", "reward", "replay", "learner", "evaluator")
"""Every kind of actor, in the order of a task's way, which is also the order in which they drain."""
USER = "user"
"""The credentials of a person with the CLI: publishes tasks, reads everything, replays dead letters."""


class Retention(StrEnum):
    """How long a message stays."""

    WORK = "work"
    """Until one consumer has acknowledged it. Full means back-pressure: publishing waits."""
    KEEP = "keep"
    """Until the bound; then ``discard`` decides."""
    LATEST = "latest"
    """The last one per subject."""


@dataclass(frozen=True)
class Topic:
    """One row of the table.

    Attributes:
        name: also the stream's name (upper case, after the run's) and the subject's third token.
        record: what travels; ``None`` for raw chunks.
        key: what the tokens after the topic's name are, for people.
        max_bytes: bound of the stream.
        max_messages: bound of the stream in messages; -1 is unbounded (bytes still bound it).
        discard_old: at the bound, forget the oldest instead of refusing the newest.
        publishers, consumers: actor kinds that may publish; kinds that share the work (WORK) or follow (others).
        ack_wait_s: a consumer that is silent for so long is taken for dead and its message given to another.
        max_ack_pending: deliveries that may be unacknowledged at once, over all instances.
    """

    name: str
    record: type[Record] | None
    key: str
    retention: Retention
    max_bytes: int
    publishers: tuple[str, ...]
    consumers: tuple[str, ...]
    max_messages: int = -1
    max_age_s: int = 0
    max_per_subject: int = -1
    discard_old: bool = False
    ack_wait_s: float = 15.0
    max_ack_pending: int = 4096
    deduplicate_s: int = 600

    def stream(self, run: str) -> str:
        """Name of the stream of this topic in a run."""
        return f"{run}-{self.name}"

    def subject(self, run: str, *key: str) -> str:
        """Subject of a message; ``key`` fills the tokens after the topic's name."""
        return ".".join(("busrl", run, self.name, *key))

    def all_subjects(self, run: str) -> str:
        """Wildcard over every subject of this topic in a run."""
        return f"busrl.{check_name(run, 'run')}.{self.name}.>"

    def durable(self, kind: str) -> str:
        """Name of the durable consumer that the actors of a kind share."""
        return f"{kind}-{self.name}"


TASKS = Topic(
    "tasks", Task, "SPLIT.DOMAIN.KEY", Retention.KEEP, 2 * GIB, (USER,), ("curriculum", "verifier", "evaluator"),
    max_per_subject=1, deduplicate_s=1,
)  # fmt: skip
TURNS = Topic("turns", Turn, "DOMAIN", Retention.WORK, 256 * MIB, ("curriculum",), ("generator",))
ROLLOUTS = Topic("rollouts", Rollout, "DOMAIN", Retention.WORK, 1 * GIB, ("generator",), ("verifier",), ack_wait_s=30)
VERDICTS = Topic("verdicts", Verdict, "DOMAIN", Retention.WORK, 1 * GIB, ("verifier",), ("reward",))
EXPERIENCES = Topic(
    "experiences", Experience, "DOMAIN", Retention.WORK, 2 * GIB, ("reward",), ("replay",), ack_wait_s=30
)
BATCHES = Topic("batches", Batch, "NUMBER", Retention.WORK, 2 * GIB, ("replay",), ("learner",), ack_wait_s=60)
OUTCOMES = Topic(
    "outcomes", Outcome, "STATUS.DOMAIN", Retention.KEEP, 512 * MIB,
    ("reward", "replay", "learner", USER), ("curriculum",), discard_old=True,
)  # fmt: skip
STEPS = Topic(
    "steps",
    Step,
    "EPOCH",
    Retention.KEEP,
    256 * MIB,
    ("learner",),
    ("curriculum", "replay", "evaluator", "learner"),
    discard_old=True,
)
WEIGHTS = Topic(
    "weights", WeightManifest, "EPOCH", Retention.KEEP, 16 * MIB, ("learner",),
    ("generator", "evaluator", "curriculum", "replay", "learner"), max_messages=1000, discard_old=True,
)  # fmt: skip
EVALUATIONS = Topic(
    "evaluations",
    Evaluation,
    "DOMAIN",
    Retention.KEEP,
    64 * MIB,
    ("evaluator",),
    ("curriculum", "evaluator"),
    discard_old=True,
)
DEAD = Topic(
    "dead",
    DeadLetter,
    "TOPIC",
    Retention.KEEP,
    512 * MIB,
    (*EVERY_ACTOR,),
    ("curriculum", "replay", USER),
    discard_old=True,
)
HEARTBEATS = Topic(
    "heartbeats", Heartbeat, "KIND.INSTANCE", Retention.LATEST, 16 * MIB, (*EVERY_ACTOR,), (), max_per_subject=1,
    max_age_s=DAY_S, discard_old=True,
)  # fmt: skip
ALERTS = Topic("alerts", Alert, "NAME", Retention.KEEP, 16 * MIB, (*EVERY_ACTOR,), (), discard_old=True)
CONTROL = Topic(
    "control",
    Control,
    "KIND",
    Retention.KEEP,
    1 * MIB,
    (USER,),
    (*EVERY_ACTOR,),
    max_age_s=DAY_S,
    discard_old=True,
)
SNAPSHOTS = Topic(
    "snapshots", Snapshot, "KIND", Retention.LATEST, 64 * MIB, ("curriculum",), ("curriculum",),
    max_per_subject=1, discard_old=True,
)  # fmt: skip
BLOBS = Topic(
    "blobs", None, "ID.CHUNK", Retention.KEEP, 4 * GIB, (*EVERY_ACTOR, USER), (*EVERY_ACTOR, USER), max_age_s=DAY_S,
    deduplicate_s=1,
)  # fmt: skip

TOPICS: tuple[Topic, ...] = (
    TASKS, TURNS, ROLLOUTS, VERDICTS, EXPERIENCES, BATCHES, OUTCOMES, STEPS, WEIGHTS, EVALUATIONS, DEAD, HEARTBEATS,
    ALERTS, CONTROL, SNAPSHOTS, BLOBS,
)  # fmt: skip

BY_NAME = {topic.name: topic for topic in TOPICS}


def topic_of(subject: str) -> Topic | None:
    """The topic that a subject belongs to, or None."""
    parts = subject.split(".")
    return BY_NAME.get(parts[2]) if len(parts) > 2 and parts[0] == "busrl" else None
