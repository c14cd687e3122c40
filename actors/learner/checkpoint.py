"""Checkpoints: everything the next step depends on, in one folder that is whole or not there.

A checkpoint is written beside its place, flushed, and renamed. Its digest file tells a torn one, which is passed over
with a warning. Nothing is pickled: tensors are safetensors, the rest is JSON. The folder is a Hugging Face model
folder as well.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from actors.policy.model import Policy

FORMAT = 1
_NAME = re.compile(r"^(\d{6,})-version-(\d+)$")
_TEMPORARY = ".writing-"
_MODEL, _OPTIMIZER, _RNG, _STATE, _DIGESTS = (
    "model.safetensors",
    "optimizer.safetensors",
    "rng.safetensors",
    "state.json",
    "digests.json",
)
_PARTS = {"architecture": "architecture", "tensors": "model size", "vocabulary": "tokenizer"}

_log = structlog.get_logger(__name__)


class CheckpointError(ValueError):
    """A checkpoint that can not be used; one line that says which and why."""


class _Torn(Exception):
    """A checkpoint that is not whole."""


@dataclass(frozen=True)
class TrainerState:
    """What a trainer resumes from: tensors by name, and counters."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    rng: dict[str, Tensor]
    counters: dict[str, int]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back. ``extra`` is what the caller saved with it; ``torn`` are newer ones passed over."""

    path: Path
    state: TrainerState
    extra: dict[str, Any]
    torn: tuple[str, ...]


class CheckpointStore:
    """The checkpoints of one run in one folder, the newest ``keep`` of them. One writer at a time."""

    def __init__(self, folder: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep = {keep}: at least the newest checkpoint is kept")
        self.folder = Path(folder)
        self._keep = keep
        self._torn: set[Path] = set()

    def paths(self) -> list[Path]:
        """Return the checkpoints, oldest first, without looking into them."""
        if not self.folder.is_dir():
            return []
        found = [(int(match[1]), path) for path in self.folder.iterdir() if (match := _NAME.match(path.name))]
        return [path for _, path in sorted(found)]

    def save(self, policy: Policy, state: TrainerState, extra: Mapping[str, Any]) -> Path:
        """Write a checkpoint, then remove those beyond ``keep``; ``extra`` is anything that JSON can hold.

        Raises:
            CheckpointError: ``extra`` is not JSON. The older checkpoints stand.
            OSError: the disk is full or not writable. The older checkpoints stand.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        existing = self.paths()
        number = int(existing[-1].name.split("-")[0]) + 1 if existing else 1
        path = self.folder / f"{number:06d}-version-{state.counters['version']}"
        fresh = self.folder / f"{_TEMPORARY}{secrets.token_hex(4)}"
        fresh.mkdir()
        try:
            _write(fresh, policy, state, extra)
            fresh.rename(path)
            _flush(self.folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        self._prune()
        return path

    def load_latest(self, policy: Policy) -> Checkpoint | None:
        """Return the newest whole checkpoint, None if there has never been one. A torn one is warned of.

        Raises:
            CheckpointError: it belongs to another architecture, tokenizer or format, or none of them is whole.
        """
        torn: list[str] = []
        for path in reversed(self.paths()):
            try:
                _verify(path)
                return _read(path, policy, tuple(torn))
            except _Torn as reason:
                torn.append(f"{path.name}: {reason}")
                self._torn.add(path)
                _log.warning("checkpoint.torn", path=str(path), reason=str(reason))
        if torn:
            raise CheckpointError(f"{self.folder}: none of {len(torn)} checkpoints is whole; the newest, {torn[0]}")
        return None

    def _prune(self) -> None:
        """Remove torn checkpoints and those beyond the newest ``keep``; renamed first, never half there."""
        whole = [path for path in self.paths() if path not in self._torn]
        for path in [*self._torn, *whole[: -self._keep]]:
            aside = self.folder / f"{_TEMPORARY}{secrets.token_hex(4)}"
            path.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
        self._torn.clear()

    def _sweep(self) -> None:
        """Remove what a killed writer left."""
        for path in self.folder.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(path, ignore_errors=True)


def _write(folder: Path, policy: Policy, state: TrainerState, extra: Mapping[str, Any]) -> None:
    record = {
        "format": FORMAT,
        "signature": policy.signature(),
        "counters": state.counters,
        "extra": dict(extra),
    }
    try:
        text = json.dumps(record, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"extra of a checkpoint must be JSON: {error}") from error
    policy.model.config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    try:
        save_file(_contiguous(state.model), folder / _MODEL, metadata={"format": "pt"})
        save_file(_contiguous(state.optimizer), folder / _OPTIMIZER)
        save_file(_contiguous(state.rng), folder / _RNG)
    except SafetensorError as error:  # what the library makes of a full disk
        raise OSError(str(error)) from error
    (folder / _STATE).write_text(text)
    digests = {path.name: _digest(path) for path in sorted(folder.iterdir())}
    (folder / _DIGESTS).write_text(json.dumps(digests))
    for path in [*folder.iterdir(), folder]:
        _flush(path)


def _verify(path: Path) -> None:
    """Raise unless every file is there and as it was written."""
    try:
        digests = json.loads((path / _DIGESTS).read_text())
    except (OSError, ValueError):
        raise _Torn(f"{_DIGESTS} is missing or unreadable") from None
    if not isinstance(digests, dict) or not {_MODEL, _OPTIMIZER, _RNG, _STATE} <= digests.keys():
        raise _Torn(f"{_DIGESTS} does not list every file")
    for name, digest in digests.items():
        if not (path / name).is_file():
            raise _Torn(f"{name} is missing")
        if _digest(path / name) != digest:
            raise _Torn(f"{name} does not match its digest")


def _read(path: Path, policy: Policy, torn: tuple[str, ...]) -> Checkpoint:
    record = json.loads((path / _STATE).read_text())
    if record["format"] != FORMAT:
        raise CheckpointError(f"{path} has format {record['format']}, this version reads {FORMAT}")
    own = policy.signature()
    for part, found in record["signature"].items():
        if own.get(part) != found:
            raise CheckpointError(f"{path} belongs to another policy than {policy.folder}: another {_PARTS[part]}")
    try:
        state = TrainerState(
            model=load_file(path / _MODEL),
            optimizer=load_file(path / _OPTIMIZER),
            rng=load_file(path / _RNG),
            counters=record["counters"],
        )
    except SafetensorError as error:
        raise _Torn(str(error)) from error
    return Checkpoint(path, state, record["extra"], torn)


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def _digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
