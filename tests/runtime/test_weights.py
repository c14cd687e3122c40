"""Weights on their way: whole, from the nearest source, never backwards, and never torn."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messages import WeightManifest, WeightSource
from messages.topics import BLOBS
from runtime import weights
from runtime.blobs import digest_of
from runtime.bus import Bus
from runtime.errors import WeightsRefused
from runtime.weights import VersionGate, WeightWriter, fetch
from tests.conftest import LiveBus
from tests.runtime.tiny import until

PAYLOAD = os.urandom(1_200_000)


@pytest.fixture
def writer(tmp_path: Path) -> WeightWriter:
    return WeightWriter(tmp_path / "weights", keep=3, host="here")


@pytest.fixture
async def generator(live: LiveBus) -> Bus:
    return await live.connect("generator")


@pytest.fixture
async def served(live: LiveBus, writer: WeightWriter) -> Iterator[WeightWriter]:
    """A writer that answers requests for its versions."""
    learner = await live.connect("learner")
    task = asyncio.create_task(writer.serve_requests(learner))
    await until(lambda: learner.nc._subs)  # it has asked to hear requests
    await learner.nc.flush()
    await learner.nc.flush()
    yield writer
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def manifest(epoch: int, version: int) -> WeightManifest:
    source = WeightSource(kind="file", host="here", location="/nowhere")
    return WeightManifest(
        epoch=epoch, version=version, digest=digest_of(b""), size_bytes=1, sources=(source,), published_s=0
    )


def path_of(found: WeightManifest) -> Path:
    return Path(found.sources[0].location)


async def test_a_version_is_read_from_the_learners_file_on_its_own_machine(
    generator: Bus, writer: WeightWriter
) -> None:
    made = writer.write([PAYLOAD[:1000], memoryview(PAYLOAD)[1000:]], 1, 7)
    payload, kind = await fetch(generator, made, host="here")
    assert (bytes(payload), kind) == (PAYLOAD, "file")
    assert (made.epoch, made.version, made.size_bytes, made.digest) == (1, 7, len(PAYLOAD), digest_of(PAYLOAD))
    assert payload.readonly


async def test_a_version_comes_over_the_bus_to_another_machine_and_is_put_there_once(
    live: LiveBus, generator: Bus, served: WeightWriter
) -> None:
    made = served.write([PAYLOAD], 1, 1)
    for bus in (generator, await live.connect("evaluator")):
        payload, kind = await fetch(bus, made, host="elsewhere")
        assert (bytes(payload), kind) == (PAYLOAD, "jetstream")
    assert (await generator.stream_state(BLOBS)).messages == 3


async def test_versions_on_the_bus_are_forgotten_with_their_files(generator: Bus, served: WeightWriter) -> None:
    for version in range(6):
        made = served.write([PAYLOAD], 1, version)
        await fetch(generator, made, host="elsewhere")
    assert (await generator.stream_state(BLOBS)).messages == 3 * served.keep


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: bytes([data[0] ^ 1]) + data[1:], "file: 1200000 bytes with digest"),
        (lambda data: data[:-1], "file: 1199999 bytes with digest"),
        (lambda data: data + b"x", "file: 1200001 bytes with digest"),
        (lambda data: b"", "file: "),
    ],
)
async def test_a_damaged_file_is_refused_with_the_reason(generator: Bus, writer: WeightWriter, damage, says) -> None:
    made = writer.write([PAYLOAD], 2, 3)
    path_of(made).write_bytes(damage(PAYLOAD))
    only_file = made.model_copy(update={"sources": made.sources[:1]})
    with pytest.raises(WeightsRefused, match="epoch 2 version 3: ") as caught:
        await fetch(generator, only_file, host="here")
    assert says in str(caught.value)


async def test_a_damaged_file_is_damaged_over_the_bus_too(generator: Bus, served: WeightWriter) -> None:
    made = served.write([PAYLOAD], 1, 1)
    path_of(made).write_bytes(PAYLOAD[:-1])
    with pytest.raises(WeightsRefused, match=r"file: 1199999 bytes .*; jetstream: 1199999 bytes"):
        await fetch(generator, made, host="here")


async def test_a_lost_file_is_replaced_by_the_next_source(generator: Bus, served: WeightWriter) -> None:
    made = served.write([PAYLOAD], 1, 1)
    missing = WeightSource(kind="file", host="here", location="/nowhere/1.safetensors")
    payload, kind = await fetch(generator, made.model_copy(update={"sources": (missing, made.sources[1])}), host="here")
    assert (bytes(payload), kind) == (PAYLOAD, "jetstream")


async def test_a_version_that_is_gone_is_refused_with_every_reason(generator: Bus, served: WeightWriter) -> None:
    made = served.write([PAYLOAD], 1, 1)
    for version in range(2, 2 + served.keep):
        served.write([b"newer"], 1, version)
    with pytest.raises(WeightsRefused, match=r"file: .*No such file.*; jetstream: version .* is gone"):
        await fetch(generator, made, host="here")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "", "\xff", "0001-00000001.safetensors/.."])
async def test_only_versions_are_served_whatever_is_asked_for(generator: Bus, served: WeightWriter, name: str) -> None:
    (served.folder.parent / "secret").write_text("password")
    made = served.write([PAYLOAD], 1, 1)
    source = WeightSource(kind="jetstream", host="", location=name)
    with pytest.raises(WeightsRefused, match="is gone"):
        await fetch(generator, made.model_copy(update={"sources": (source,)}))


async def test_a_learner_whose_blobs_are_full_says_so_and_serves_on(
    live: LiveBus, generator: Bus, served: WeightWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "SERVE_DEADLINE_S", 0.1)
    admin = await live.connect()
    config = (await admin.js.stream_info(BLOBS.stream("test"))).config
    await admin.js.update_stream(config.evolve(max_bytes=1000))
    made = served.write([PAYLOAD], 1, 1)
    with pytest.raises(WeightsRefused, match="at its bound"):
        await fetch(generator, made, host="elsewhere")
    await admin.js.update_stream(config)
    assert (await fetch(generator, made, host="elsewhere"))[1] == "jetstream"


def test_only_the_newest_files_are_kept(writer: WeightWriter) -> None:
    for version in range(10):
        writer.write([b"x%d" % version], 1, version)
    assert sorted(path.name for path in writer.folder.iterdir()) == [
        f"0001-{version:08d}.safetensors" for version in (7, 8, 9)
    ]


def test_a_version_written_again_counts_once(writer: WeightWriter) -> None:
    for _ in range(5):
        made = writer.write([b"same"], 1, 1)
    assert [path.name for path in writer.folder.iterdir()] == [path_of(made).name]


def test_a_failure_in_mid_write_leaves_no_file(writer: WeightWriter) -> None:
    def chunks() -> Iterator[bytes]:
        yield PAYLOAD
        raise OSError(28, "No space left on device")

    whole = writer.write([b"old"], 1, 1)
    with pytest.raises(OSError, match="No space"):
        writer.write(chunks(), 1, 2)
    assert list(writer.folder.iterdir()) == [path_of(whole)]


def test_a_reader_never_sees_a_file_that_is_still_being_written(writer: WeightWriter) -> None:
    seen: list[list[str]] = []

    def chunks() -> Iterator[bytes]:
        for _ in range(3):
            yield PAYLOAD
            seen.append([path.name for path in writer.folder.glob("*.safetensors")])

    writer.write(chunks(), 1, 1)
    assert seen == [[], [], []]


def test_files_of_an_earlier_life_are_cleared_and_our_own_are_not(writer: WeightWriter) -> None:
    writer.folder.mkdir()
    for name in ("0000-00000001.safetensors", "0001-00000002.123.partial"):
        (writer.folder / name).write_bytes(b"x")
    made = writer.write([b"new"], 2, 0)
    writer.clear_strangers()
    assert list(writer.folder.iterdir()) == [path_of(made)]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=40))
def test_what_is_served_only_ever_grows(announced: list[tuple[int, int]]) -> None:
    gate, served = VersionGate(), [(-1, -1)]
    for epoch, version in announced:
        refusal = gate.refusal(manifest(epoch, version))
        assert (refusal is None) is ((epoch, version) > served[-1])
        if refusal is None:
            gate.passed(manifest(epoch, version))
            served.append((epoch, version))
    assert served == sorted(set(served))


def test_an_older_epoch_is_refused_even_with_a_newer_version() -> None:
    gate = VersionGate()
    gate.passed(manifest(3, 10))
    assert gate.refusal(manifest(2, 99)) == "epoch 2 is older than 3: its learner was fenced off"
    assert gate.refusal(manifest(3, 10)) == "version 10 of epoch 3 is not newer than 10"
    assert gate.refusal(manifest(4, 2)) is None


def test_removing_leaves_nothing_behind(tmp_path: Path) -> None:
    writer = WeightWriter(tmp_path / "weights", keep=2)
    for version in range(3):
        writer.write([b"bytes"], 1, version)
    writer.remove()
    assert not (tmp_path / "weights").exists()
