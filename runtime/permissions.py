"""Who may do what on the bus, derived from the table of topics: an own user per actor kind, with only its subjects.

A generator can take turns and publish rollouts; it can not publish weights, acknowledge another kind's work or read
another kind's answers (each user has its own inbox prefix).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from messages import TOPICS, Retention, Topic
from messages.topics import BLOBS, EVERY_ACTOR, SNAPSHOTS, USER

ADMIN = "admin"
"""The launcher's own user: declares streams and may do everything in the run."""

HEALTH = "health"
WEIGHTS_REQUEST = "request-weights"


def health_subject(run: str, kind: str, instance: str) -> str:
    """Where an actor answers health questions with its heartbeat."""
    return f"busrl.{run}.{HEALTH}.{kind}.{instance}"


def weights_request_subject(run: str) -> str:
    """Where the learner is asked to put a version on the bus for someone who can not reach its files."""
    return f"busrl.{run}.{WEIGHTS_REQUEST}"


@dataclass(frozen=True)
class BusUser:
    """One user of the server."""

    kind: str
    user: str
    password: str = field(repr=False)
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]

    def authorization(self) -> dict[str, Any]:
        """The user's entry of the server's configuration."""
        entry: dict[str, Any] = {"user": self.user, "password": self.password}
        if self.kind != ADMIN:
            entry["permissions"] = {
                "publish": {"allow": list(self.publish)},
                "subscribe": {"allow": list(self.subscribe)},
                "allow_responses": {"max": 64, "expires": "1m"},
            }
        return entry


def users(run: str) -> list[BusUser]:
    """A user per actor kind, one for people, one for the launcher; passwords are fresh."""
    made = [_user(run, kind) for kind in (*EVERY_ACTOR, USER)]
    return [*made, BusUser(ADMIN, ADMIN, secrets.token_urlsafe(24), (">",), (">",))]


def _user(run: str, kind: str) -> BusUser:
    publish: list[str] = []
    subscribe = [f"_INBOX.{kind}.>"]
    for topic in TOPICS:
        publish += _topic_permissions(topic, run, kind)
    if kind == USER:
        publish += [f"busrl.{run}.{HEALTH}.>", "$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES", "$JS.API.INFO"]
    else:
        subscribe.append(health_subject(run, kind, "*"))
        publish.append(f"$JS.API.DIRECT.GET.{SNAPSHOTS.stream(run)}")  # the run file, for who joins over the bus
    if kind in ("generator", "evaluator"):
        publish.append(weights_request_subject(run))
    if kind == "learner":
        subscribe.append(weights_request_subject(run))
    return BusUser(kind, kind, secrets.token_urlsafe(24), tuple(dict.fromkeys(publish)), tuple(subscribe))


def _topic_permissions(topic: Topic, run: str, kind: str) -> list[str]:
    stream = topic.stream(run)
    allowed: list[str] = []
    replays = kind == USER and topic.retention is Retention.WORK
    if kind in topic.publishers or replays:
        allowed += [topic.all_subjects(run), *_reading(stream, consumers=False)]
    if kind in topic.consumers and topic.retention is Retention.WORK:
        durable = topic.durable(kind)
        allowed += [f"$JS.API.CONSUMER.{verb}.{stream}.{durable}" for verb in ("MSG.NEXT", "INFO", "DELETE")]
        allowed += [f"$JS.API.CONSUMER.CREATE.{stream}.{durable}.>", f"$JS.ACK.{stream}.{durable}.>"]
    elif kind in topic.consumers or kind == USER:
        allowed += _reading(stream, consumers=topic.retention is not Retention.WORK)
    if topic is BLOBS and kind in topic.publishers:
        allowed.append(f"$JS.API.STREAM.PURGE.{stream}")
    return allowed


def _reading(stream: str, *, consumers: bool) -> list[str]:
    allowed = [f"$JS.API.STREAM.INFO.{stream}", f"$JS.API.DIRECT.GET.{stream}", f"$JS.API.DIRECT.GET.{stream}.>"]
    if consumers:
        allowed += [f"$JS.API.CONSUMER.{verb}.{stream}.>" for verb in ("CREATE", "MSG.NEXT", "DELETE")]
    return allowed
