"""The claim check: a payload comes back whole or not at all, and a forged claim reaches nothing else."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messages.topics import BLOBS
from runtime import blobs
from runtime.blobs import CHUNK_BYTES
from runtime.bus import Bus
from runtime.errors import BlobGone, BusFull
from tests.conftest import RUN, LiveBus


@pytest.fixture
async def bus(live: LiveBus) -> Bus:
    return await live.connect("generator")


@pytest.fixture
async def admin(live: LiveBus) -> Bus:
    return await live.connect()


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 9 * CHUNK_BYTES + 5])
async def test_a_payload_comes_back_whole(bus: Bus, size: int) -> None:
    payload = os.urandom(size)
    claim = await blobs.put(bus, payload)
    assert await blobs.get(bus, claim) == payload
    assert (await bus.stream_state(BLOBS)).messages == -(-size // CHUNK_BYTES)


async def test_a_deleted_payload_is_gone_and_another_is_not(bus: Bus) -> None:
    claim, other = await blobs.put(bus, b"one" * 500_000), await blobs.put(bus, b"two")
    await blobs.delete(bus, claim)
    assert (await bus.stream_state(BLOBS)).messages == 1
    with pytest.raises(BlobGone, match="3 of 3 chunks are gone"):
        await blobs.get(bus, claim)
    assert await blobs.get(bus, other) == b"two"


async def test_a_missing_chunk_is_named(bus: Bus, admin: Bus) -> None:
    claim = await blobs.put(bus, os.urandom(3 * CHUNK_BYTES))
    await admin.js.purge_stream(BLOBS.stream(RUN), subject=BLOBS.subject(RUN, claim.split(";")[0], "1"))
    with pytest.raises(BlobGone, match="1 of 3 chunks are gone, the first is 1"):
        await blobs.get(bus, claim)


async def test_a_flipped_byte_is_refused(bus: Bus, admin: Bus) -> None:
    payload = os.urandom(1000)
    claim = await blobs.put(bus, payload)
    subject = BLOBS.subject(RUN, claim.split(";")[0], "0")
    await admin.js.purge_stream(BLOBS.stream(RUN), subject=subject)
    await admin.publish_bytes(subject, bytes([payload[0] ^ 1]) + payload[1:], {}, BLOBS.stream(RUN))
    with pytest.raises(BlobGone, match="do not match"):
        await blobs.get(bus, claim)


async def test_chunks_that_nobody_claimed_do_no_harm(bus: Bus, admin: Bus) -> None:
    claim = await blobs.put(bus, b"mine")
    for name in ("1", "999999999999", "x", "²"):
        await admin.publish_bytes(BLOBS.subject(RUN, claim.split(";")[0], name), b"not", {}, BLOBS.stream(RUN))
    assert await blobs.get(bus, claim) == b"mine"


async def test_a_repeat_with_another_content_leaves_the_first_claim_readable(bus: Bus) -> None:
    first = await blobs.put(bus, b"a" * 1000, "turn-1")
    second = await blobs.put(bus, b"b" * 1000, "turn-1")
    assert await blobs.get(bus, first) == b"a" * 1000
    assert await blobs.get(bus, second) == b"b" * 1000


async def test_a_full_stream_is_back_pressure_and_nothing_else(bus: Bus, admin: Bus) -> None:
    config = (await admin.js.stream_info(BLOBS.stream(RUN))).config
    await admin.js.update_stream(config.evolve(max_bytes=1000))
    with pytest.raises(BusFull, match="at its bound"):
        await blobs.put(bus, os.urandom(3 * CHUNK_BYTES), deadline_s=0.1)


DIGEST = "xxh3-128:" + "0" * 32


@pytest.mark.parametrize(
    "claim",
    [
        "",
        "id",
        f"*;5;{DIGEST};1",
        f"_.>;5;{DIGEST};1",
        f"a.b;5;{DIGEST};1",
        f"a b_;5;{DIGEST};1",
        f"a\n;5;{DIGEST};1",
        f"id;5;{DIGEST};1\n",
        f"id;-5;{DIGEST};1",
        f"id;²;{DIGEST};1",
        f"id;5;{DIGEST};999999999",
        f"id;5;{DIGEST};0",
        f"id;0;{DIGEST};1",
        f"id;{10**14};{DIGEST};{-(-(10**14) // CHUNK_BYTES)}",
        "id;5;md5:00;1",
        f"id;5;{DIGEST};1;",
    ],
)
async def test_a_forged_claim_is_refused_before_anything_is_asked_for(claim: str) -> None:
    with pytest.raises(BlobGone, match="claim"):
        blobs.parse_claim(claim)


@given(st.text(max_size=40) | st.from_regex(r"[a-z_.*>]{0,5};[0-9]{0,20};xxh3-128:[0-9a-f]{32};[0-9]{0,20}"))
def test_a_claim_is_a_single_token_with_believable_sizes_or_refused(claim: str) -> None:
    try:
        token, size, _, n_chunks = blobs.parse_claim(claim)
    except BlobGone:
        return
    assert not set(token) & set(".*> \r\n\t")
    assert (n_chunks - 1) * CHUNK_BYTES < max(1, size) <= max(1, n_chunks * CHUNK_BYTES)
