"""Replaying a dead letter: the message goes back where it was taken from, under a new id, and its group is open again.

The group is reopened first. If this process dies in between, the group is open with nothing under way, and replaying
the letter again repairs that: both publishes have ids that make a repeat harmless.
"""

from __future__ import annotations

from dataclasses import dataclass

from messages import DeadLetter, MessageError, Outcome, OutcomeStatus, Retention, decode, derive, headers
from messages.topics import BY_NAME, DEAD, OUTCOMES, Topic
from runtime.bus import Bus
from runtime.errors import UserError
from runtime.follow import follow

USER_ACTOR = "user"


@dataclass(frozen=True)
class Letter:
    """A dead letter and where it stands in the stream of dead letters."""

    seq: int
    letter: DeadLetter

    @property
    def replays(self) -> int:
        """How often the message had been replayed before it died."""
        return replays(self.letter)


@dataclass(frozen=True)
class Replayed:
    """Where the message stands now; ``duplicate`` when this very replay had been done before."""

    seq: int
    duplicate: bool
    group_id: str | None


def replays(letter: DeadLetter) -> int:
    """How often a letter's message had been replayed."""
    found = letter.headers.get(headers.REPLAY, "0")
    return int(found) if found.isdigit() else 0


async def read_letters(bus: Bus) -> list[Letter]:
    """Every dead letter that is kept, oldest first."""
    received = follow(bus, DEAD, "all", (), until_caught_up=True)
    return [
        Letter(item.seq, record) async for item in received for record in item.records if isinstance(record, DeadLetter)
    ]


def find_letter(letters: list[Letter], wanted: str) -> Letter:
    """The letter with an id that begins with ``wanted``, or with that sequence number.

    Raises:
        UserError: there is none, or more than one.
    """
    found = [item for item in letters if item.letter.id.startswith(wanted) or str(item.seq) == wanted]
    if not found:
        raise UserError(f"there is no dead letter {wanted!r}; `busrl dead list` shows {len(letters)}")
    if len(found) > 1:
        raise UserError(f"{wanted!r} fits {len(found)} dead letters: {', '.join(item.letter.id for item in found[:4])}")
    return found[0]


async def replay(bus: Bus, letter: DeadLetter) -> Replayed:
    """Put a dead letter's message back on its topic.

    Raises:
        UserError: it can not be replayed; the message says why.
    """
    topic = _work_topic(letter)
    number = replays(letter) + 1
    message_id = derive("replay", letter.id, number)
    if letter.group_id is not None:
        outcome = _reopened(letter)
        await bus.publish(
            OUTCOMES, [outcome], outcome.status.value, outcome.domain, msg_id=derive("replayed", letter.id, number)
        )
    kept = {name: value for name, value in letter.headers.items() if not name.startswith("Nats-")}
    message_headers = {**kept, headers.MSG_ID: message_id, headers.REPLAY: str(number)}
    ack = await bus.publish_bytes(letter.subject, letter.payload, message_headers, topic.stream(bus.run))
    return Replayed(ack.seq, ack.duplicate, letter.group_id)


def _work_topic(letter: DeadLetter) -> Topic:
    topic = BY_NAME.get(letter.topic)
    if topic is None or topic.retention is not Retention.WORK:
        raise UserError(
            f"dead letter {letter.id} is from topic {letter.topic!r}, which is followed and not worked on: "
            "there is nothing to replay, its message is still there"
        )
    if not letter.payload and headers.CLAIM not in letter.headers:
        raise UserError(f"dead letter {letter.id} holds no message: it was gone before it could be copied")
    return topic


def _reopened(letter: DeadLetter) -> Outcome:
    """What tells the ledger. A message that does not decode leaves the domain unknown; the group is what counts."""
    task_id, domain, n_samples = "unknown", "unknown", 0
    try:
        records = decode(letter.headers.get(headers.SCHEMA), letter.payload)
    except MessageError:
        records = []
    if records:
        inner = getattr(records[0], "rollout", records[0])
        task_id, domain = getattr(inner, "task_id", task_id), getattr(inner, "domain", domain)
        n_samples = int(getattr(inner, "n", n_samples))
    return Outcome(
        group_id=letter.group_id or "",
        task_id=task_id,
        domain=domain,
        status=OutcomeStatus.REPLAYED,
        n_samples=n_samples,
        actor=USER_ACTOR,
    )
