"""Large payloads in chunks on the blobs stream: the claim check, and weights for whoever has no shorter way.

A claim is ``id;size_bytes;digest;n_chunks``. Chunks are published with a window and read back by an own pull consumer
with a byte budget, because the Object Store reader is slow, loses chunks when it falls behind, and hangs when an object
is deleted under it. The digest is checked over the whole.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import xxhash

from messages.headers import MSG_ID
from messages.topics import BLOBS
from runtime.errors import BlobGone, BusError
from runtime.pull import OrderedReader

if TYPE_CHECKING:
    from runtime.bus import Bus

CHUNK_BYTES = 512 << 10
WINDOW = 8
GET_TIMEOUT_S = 60.0

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_CLAIM = re.compile(r"([A-Za-z0-9_-]{1,160});([0-9]{1,15});(xxh3-128:[0-9a-f]{32});([0-9]{1,9})")


def digest_of(payload: bytes | memoryview) -> str:
    """``xxh3-128:`` and 32 hexadecimal digits."""
    return f"xxh3-128:{xxhash.xxh3_128_hexdigest(payload)}"


class StreamDigest:
    """The same digest, of bytes that come piece by piece."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def update(self, piece: bytes | memoryview) -> None:
        """Add a piece."""
        self._hash.update(piece)

    def text(self) -> str:
        """As :func:`digest_of` writes it."""
        return f"xxh3-128:{self._hash.hexdigest()}"


async def put(
    bus: Bus, payload: bytes | memoryview, blob_id: str | None = None, deadline_s: float | None = 60.0
) -> str:
    """Store a payload as chunks; returns the claim.

    The content is part of the id: work that is done twice with another result (samples of a repeated turn) leaves the
    first result's claim readable.

    Raises:
        BusFull: the blobs stream is at its bound past the deadline.
    """
    view = memoryview(payload)
    digest = digest_of(view)
    token = f"{blob_id if blob_id and _NAME.fullmatch(blob_id) else uuid.uuid4().hex}-{digest[-16:]}"
    starts = range(0, len(view), CHUNK_BYTES)
    window = asyncio.Semaphore(WINDOW)

    async def send(number: int, start: int) -> None:
        async with window:
            await bus.publish_bytes(
                BLOBS.subject(bus.run, token, str(number)),
                bytes(view[start : start + CHUNK_BYTES]),
                {MSG_ID: f"{token}.{number}"},
                BLOBS.stream(bus.run),
                deadline_s,
            )

    try:
        async with asyncio.TaskGroup() as group:
            for number, start in enumerate(starts):
                group.create_task(send(number, start))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return f"{token};{len(view)};{digest};{len(starts)}"


def parse_claim(claim: str) -> tuple[str, int, str, int]:
    """``(id, size_bytes, digest, n_chunks)`` of a claim.

    Raises:
        BlobGone: it is not a claim.
    """
    match = _CLAIM.fullmatch(claim)
    if match is None:
        raise BlobGone(f"claim {claim[:80]!r} is not of the form id;size;digest;chunks")
    blob_id, size, digest, n_chunks = match[1], int(match[2]), match[3], int(match[4])
    if size > BLOBS.max_bytes or n_chunks != -(-size // CHUNK_BYTES):
        raise BlobGone(f"claim {claim[:80]!r} has {n_chunks} chunks for {size} bytes")
    return blob_id, size, digest, n_chunks


async def get(bus: Bus, claim: str) -> bytes:
    """Fetch a claimed payload, whole.

    Raises:
        BlobGone: a chunk is missing (deleted or expired), or the digest does not match.
        BusError: the bus did not deliver it in time; it may still be there.
    """
    blob_id, size, digest, n_chunks = parse_claim(claim)
    chunks: dict[int, bytes] = {}
    reader = OrderedReader(bus, BLOBS, filter_subject=BLOBS.subject(bus.run, blob_id, "*"), start="all")
    try:
        async with asyncio.timeout(GET_TIMEOUT_S):
            while len(chunks) < n_chunks:
                if await reader.at_end():
                    break
                for message in await reader.fetch(batch=64, max_bytes=8 << 20, expires_s=1.0):
                    number = message.subject.rsplit(".", 1)[1]
                    if number.isascii() and number.isdigit() and len(number) < 10 and int(number) < n_chunks:
                        chunks[int(number)] = message.data
    except TimeoutError as error:
        raise BusError(f"blob {blob_id}: {len(chunks)} of {n_chunks} chunks after {GET_TIMEOUT_S:.0f} s") from error
    finally:
        await reader.close()
    return _joined(blob_id, chunks, size, digest, n_chunks)


def _joined(blob_id: str, chunks: dict[int, bytes], size: int, digest: str, n_chunks: int) -> bytes:
    missing: Sequence[int] = [number for number in range(n_chunks) if number not in chunks]
    if missing:
        raise BlobGone(f"blob {blob_id}: {len(missing)} of {n_chunks} chunks are gone, the first is {missing[0]}")
    payload = b"".join(chunks[number] for number in range(n_chunks))
    if len(payload) != size or digest_of(payload) != digest:
        raise BlobGone(f"blob {blob_id}: {len(payload)} bytes do not match the claim's {size} bytes and digest")
    return payload


async def delete(bus: Bus, claim: str) -> None:
    """Give back the room of a payload that nobody needs any more."""
    blob_id, _, _, _ = parse_claim(claim)
    await bus.js.purge_stream(BLOBS.stream(bus.run), subject=BLOBS.subject(bus.run, blob_id, "*"))
