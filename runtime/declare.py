"""Every stream and every shared consumer, made from the one table of topics, here and nowhere else.

Declaring twice is harmless. The server would silently overwrite a consumer that differs, so each carries a fingerprint
of what this release declares, and another one's is refused.
"""

from __future__ import annotations

import json
from typing import Any

from messages import TOPICS, Retention, Topic, content_digest
from runtime.bus import Bus
from runtime.errors import DeclarationMismatch, StreamMissing

FINGERPRINT = "busrl-declaration"
_STREAM_NOT_FOUND = 10059


def stream_config(topic: Topic, run: str, replicas: int = 1) -> dict[str, Any]:
    """JetStream's own configuration of a topic's stream."""
    config: dict[str, Any] = {
        "name": topic.stream(run),
        "subjects": [topic.all_subjects(run)],
        "retention": "workqueue" if topic.retention is Retention.WORK else "limits",
        "storage": "file",
        "num_replicas": replicas,
        "max_msgs": topic.max_messages,
        "max_bytes": topic.max_bytes,
        "max_age": int(topic.max_age_s * 1e9),
        "max_msgs_per_subject": topic.max_per_subject,
        "max_consumers": -1,
        "max_msg_size": -1,
        "discard": "old" if topic.discard_old else "new",
        "duplicate_window": int(topic.deduplicate_s * 1e9),
        "allow_direct": True,
    }
    if topic.max_per_subject > 0 and not topic.discard_old:
        config["discard_new_per_subject"] = True
    config["metadata"] = {FINGERPRINT: _fingerprint(config)}
    return config


def consumer_config(topic: Topic, kind: str, run: str) -> dict[str, Any]:
    """JetStream's own configuration of the consumer that the actors of a kind share."""
    config: dict[str, Any] = {
        "durable_name": topic.durable(kind),
        "ack_policy": "explicit",
        "ack_wait": int(topic.ack_wait_s * 1e9),
        "max_deliver": -1,
        "max_ack_pending": topic.max_ack_pending,
        "max_waiting": 512,
        "deliver_policy": "all",
        "replay_policy": "instant",
        "filter_subject": topic.all_subjects(run),
    }
    config["metadata"] = {FINGERPRINT: _fingerprint(config)}
    return config


def _fingerprint(config: dict[str, Any]) -> str:
    return content_digest(json.dumps(config, sort_keys=True).encode())


async def declare(bus: Bus, replicas: int = 1) -> None:
    """Make every stream and shared consumer of the table.

    Raises:
        DeclarationMismatch: one exists with another configuration.
    """
    for topic in TOPICS:
        await _declare_stream(bus, topic, replicas)
        if topic.retention is Retention.WORK:
            for kind in topic.consumers:
                await declare_consumer(bus, topic, kind)


async def _declare_stream(bus: Bus, topic: Topic, replicas: int) -> None:
    wanted = stream_config(topic, bus.run, replicas)
    name = wanted["name"]
    found = await _ask(bus, f"STREAM.INFO.{name}", {})
    if "error" in found:
        found = await _ask(bus, f"STREAM.CREATE.{name}", wanted)
        _refuse_error(f"stream {name}", found)
    _refuse_other(f"stream {name}", found["config"], wanted)


async def declare_consumer(bus: Bus, topic: Topic, kind: str, *, afresh: bool = False) -> None:
    """Make the shared consumer of a kind; ``afresh`` makes it anew, which returns all unacknowledged messages at once.

    Raises:
        DeclarationMismatch: it exists with another configuration.
        StreamMissing: its stream is not there.
    """
    stream, wanted = topic.stream(bus.run), consumer_config(topic, kind, bus.run)
    name = wanted["durable_name"]
    if afresh:
        await _ask(bus, f"CONSUMER.DELETE.{stream}.{name}", {})
    found = await _ask(bus, f"CONSUMER.INFO.{stream}.{name}", {})
    if "error" in found:
        request = {"stream_name": stream, "config": wanted, "action": "create"}
        found = await _ask(bus, f"CONSUMER.CREATE.{stream}.{name}.{wanted['filter_subject']}", request)
        _refuse_error(f"consumer {name} of {stream}", found)
    _refuse_other(f"consumer {name} of {stream}", found["config"], wanted)


async def _ask(bus: Bus, api: str, request: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        (await bus.request_raw(f"$JS.API.{api}", json.dumps(request).encode() if request else b"")).data
    )
    return answer


def _refuse_error(what: str, found: dict[str, Any]) -> None:
    if found.get("error", {}).get("err_code") == _STREAM_NOT_FOUND:
        raise StreamMissing(f"{what} can not be made: there is no such stream")
    if "error" in found:
        raise DeclarationMismatch(f"{what} can not be made: {found['error'].get('description')}")


def _refuse_other(what: str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    mark = (found.get("metadata") or {}).get(FINGERPRINT)
    if mark == wanted["metadata"][FINGERPRINT]:
        return
    keys = [key for key in wanted if key not in ("metadata",) and found.get(key) != wanted[key]]
    differing = ", ".join(f"{key} is {found.get(key)!r}, wanted {wanted[key]!r}" for key in keys[:3])
    raise DeclarationMismatch(
        f"{what} exists with another configuration ({differing or 'made by another release'}); "
        "use another run name, or delete it"
    )


__all__ = ["consumer_config", "declare", "declare_consumer", "stream_config"]
