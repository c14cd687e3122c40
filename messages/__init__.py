"""What travels on the bus: records, their codec, and the table of topics. This room knows no other."""

from messages.arrays import Float32Array, Int32Array, MaskArray
from messages.codec import decode, encode
from messages.control import ActorState, Alert, Control, DeadLetter, DeadReason, Heartbeat, Snapshot
from messages.errors import InvalidName, MalformedPayload, MessageError, UnknownSchema
from messages.ids import content_digest, derive
from messages.learning import (
    Batch,
    DomainStep,
    DropReason,
    Evaluation,
    Experience,
    Outcome,
    OutcomeStatus,
    Step,
)
from messages.record import Record, check_name, record_type
from messages.rollout import FinishReason, Rollout, Verdict, VerdictStatus
from messages.task import ChatMessage, Sampling, Task, Turn, VerifierSpec
from messages.topics import TOPICS, Retention, Topic
from messages.weights import WeightManifest, WeightSource

__all__ = [
    "TOPICS",
    "ActorState",
    "Alert",
    "Batch",
    "ChatMessage",
    "Control",
    "DeadLetter",
    "DeadReason",
    "DomainStep",
    "DropReason",
    "Evaluation",
    "Experience",
    "FinishReason",
    "Float32Array",
    "Heartbeat",
    "Int32Array",
    "InvalidName",
    "MalformedPayload",
    "MaskArray",
    "MessageError",
    "Outcome",
    "OutcomeStatus",
    "Record",
    "Retention",
    "Rollout",
    "Sampling",
    "Snapshot",
    "Step",
    "Task",
    "Topic",
    "Turn",
    "UnknownSchema",
    "Verdict",
    "VerdictStatus",
    "VerifierSpec",
    "WeightManifest",
    "WeightSource",
    "check_name",
    "content_digest",
    "decode",
    "derive",
    "encode",
    "record_type",
]
