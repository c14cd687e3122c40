"""Following a topic: every parcel, in order, without a gap, for as long as the reader wants."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import structlog

from messages import MessageError, Topic
from runtime.errors import BlobGone
from runtime.parcel import Received
from runtime.pull import OrderedReader

if TYPE_CHECKING:
    from runtime.bus import Bus

log = structlog.get_logger()


async def follow(
    bus: Bus, topic: Topic, start: str | int, key: tuple[str, ...], *, until_caught_up: bool = False
) -> AsyncGenerator[Received, None]:
    """See :meth:`runtime.bus.Bus.follow`. A parcel that does not decode is logged and passed over."""
    subject = topic.subject(bus.run, *key) if key else topic.all_subjects(bus.run)
    reader = OrderedReader(bus, topic, filter_subject=subject, start=start)
    try:
        while True:
            if until_caught_up and await reader.at_end():
                return
            for message in await reader.fetch():
                metadata = message.metadata
                found = message.headers or {}
                try:
                    records = await bus.unpack(message.data, found, topic)
                except (MessageError, BlobGone) as error:
                    log.warning("unreadable message", topic=topic.name, seq=metadata.sequence.stream, error=str(error))
                    continue
                yield Received(
                    records, metadata.sequence.stream, message.subject, found, metadata.timestamp.timestamp()
                )
    finally:
        await reader.close()
