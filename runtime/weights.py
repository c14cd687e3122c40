"""Weights on their way: written once, announced on the bus, served only when the bytes are whole.

Bytes go by the shortest way that reaches: a file in shared memory or on disk for readers on the learner's machine, a
blob on the bus for others (made when one asks). This room handles bytes; what they mean is the actors' business.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgpack
import nats.errors
import structlog

from messages import WeightManifest, WeightSource
from runtime import blobs
from runtime.bus import Bus
from runtime.errors import BlobGone, BusError, WeightsRefused
from runtime.permissions import weights_request_subject

log = structlog.get_logger()

SERVE_DEADLINE_S = 30.0
"""How long a full blobs stream may hold up the answer to one request."""

WRITE_AGAIN_S = 15.0
"""How long one request may wait for a file to be written again; who asks waits a little longer."""


def machine_id() -> str:
    """What two processes that can reach each other's files have in common: host name and boot id."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    mark = boot.read_text().strip() if boot.exists() else f"{uuid.getnode():x}"
    return f"{socket.gethostname()}/{mark}"


def weights_folder(run_folder: Path) -> Path:
    """Where the files of a run's weights go: shared memory where there is enough of it, else the run folder."""
    shared = Path("/dev/shm")
    usable = shared.is_dir() and os.access(shared, os.W_OK)
    if usable:
        room = os.statvfs(shared)
        usable = room.f_bavail * room.f_frsize > 2 << 30
    if not usable:
        return run_folder / "weights"
    return shared / f"busrl-{os.getuid()}-{blobs.digest_of(str(run_folder.resolve()).encode())[-16:]}"


@dataclass
class WeightWriter:
    """The learner's side: files of the newest ``keep`` versions, older ones removed."""

    folder: Path
    keep: int = 4
    host: str = field(default_factory=machine_id)
    _kept: list[Path] = field(default_factory=list)

    def write(self, chunks: Sequence[bytes | memoryview], epoch: int, version: int) -> WeightManifest:
        """Write a version's file, whole or not at all, and describe it. Blocks; call it off the loop.

        Raises:
            OSError: no room, or the folder can not be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{epoch:04d}-{version:08d}.safetensors"
        partial = path.with_suffix(f".{os.getpid()}.partial")
        digest = blobs.StreamDigest()
        size = 0
        try:
            with partial.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        self._forget_old(path)
        sources = (
            WeightSource(kind="file", host=self.host, location=str(path)),
            WeightSource(kind="jetstream", host="", location=path.name),
        )
        return WeightManifest(
            epoch=epoch,
            version=version,
            digest=digest.text(),
            size_bytes=size,
            sources=sources,
            published_s=0.0,
        )

    def _forget_old(self, newest: Path) -> None:
        if newest not in self._kept:
            self._kept.append(newest)
        while len(self._kept) > self.keep:
            self._kept.pop(0).unlink(missing_ok=True)

    def clear_strangers(self) -> None:
        """Remove files of earlier lives that nobody will ask for any more."""
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                if path not in self._kept:
                    path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Give back the room: whoever goes on with the run announces weights of its own first."""
        self._kept.clear()
        self.clear_strangers()
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    async def serve_requests(self, bus: Bus, write_again: Callable[[], Awaitable[None]] | None = None) -> None:
        """Answer those who can not reach our files: put the asked version on the bus once, reply with its claim.

        ``write_again`` is asked for the newest version's file when that has disappeared.
        """
        claims: dict[str, str] = {}
        subscription = await bus.nc.subscribe(weights_request_subject(bus.run))
        async for message in subscription.messages:
            name = message.data.decode(errors="replace")
            path = self.folder / name
            if write_again is not None and path in self._kept[-1:] and not path.exists():
                log.warning("weights have disappeared, written again", path=str(path))
                with contextlib.suppress(TimeoutError, OSError):
                    await asyncio.wait_for(write_again(), WRITE_AGAIN_S)
            if path not in self._kept or not path.exists():
                await message.respond(msgpack.packb({"error": f"version {name} is gone"}))
                continue
            try:
                if name not in claims:
                    payload = await asyncio.to_thread(path.read_bytes)
                    claims[name] = await blobs.put(bus, payload, deadline_s=SERVE_DEADLINE_S)
                    for old in list(claims)[: -self.keep]:
                        await blobs.delete(bus, claims.pop(old))
                await message.respond(msgpack.packb({"claim": claims[name]}))
            except (OSError, BusError, nats.errors.Error) as error:  # who asks hears it; the learner goes on
                log.warning("version not served", version=name, error=str(error))
                await message.respond(msgpack.packb({"error": f"version {name} not served: {error}"}))


async def fetch(bus: Bus, manifest: WeightManifest, host: str | None = None) -> tuple[memoryview, str]:
    """The bytes of a version, from the nearest source that has them whole, and which kind of source that was.

    Raises:
        WeightsRefused: no source gave bytes that match the digest; the reasons are listed.
    """
    here = host or machine_id()
    reasons = []
    for source in manifest.sources:
        try:
            if source.kind == "file":
                if source.host != here:
                    reasons.append("file: on another machine")
                    continue
                payload = await asyncio.to_thread(_map_file, source.location)
            else:
                payload = memoryview(await _ask_learner(bus, source.location))
            found = await asyncio.to_thread(blobs.digest_of, payload)
        except (OSError, BlobGone, BusError, ValueError) as error:
            reasons.append(f"{source.kind}: {error}")
            continue
        if len(payload) == manifest.size_bytes and found == manifest.digest:
            return payload, source.kind
        reasons.append(
            f"{source.kind}: {len(payload)} bytes with digest {found}, announced {manifest.size_bytes} bytes"
        )
    raise WeightsRefused(f"epoch {manifest.epoch} version {manifest.version}: {'; '.join(reasons)}")


def _map_file(location: str) -> memoryview:
    """The file's pages, shared with the learner's and copied by nobody."""
    with Path(location).open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


async def _ask_learner(bus: Bus, name: str) -> bytes:
    answer = msgpack.unpackb((await bus.request_raw(weights_request_subject(bus.run), name.encode(), 20.0)).data)
    if "claim" not in answer:
        raise BlobGone(str(answer.get("error", "no claim")))
    return await blobs.get(bus, answer["claim"])


@dataclass
class VersionGate:
    """Which manifests a reader may follow: (epoch, version) only ever grows, epochs never go back. Pure."""

    epoch: int = -1
    version: int = -1

    def refusal(self, manifest: WeightManifest) -> str | None:
        """Why a manifest must not be served now, or None when it may."""
        if manifest.epoch < self.epoch:
            return f"epoch {manifest.epoch} is older than {self.epoch}: its learner was fenced off"
        if manifest.epoch == self.epoch and manifest.version <= self.version:
            return f"version {manifest.version} of epoch {manifest.epoch} is not newer than {self.version}"
        return None

    def passed(self, manifest: WeightManifest) -> None:
        """The manifest's weights are being served from now on."""
        self.epoch, self.version = manifest.epoch, manifest.version
