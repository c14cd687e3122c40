"""The running samples as a struct of arrays, so that the work per decode step is a few numpy calls for any batch.

Promise: row r here is row r of the KV cache; rows 0..n-1 are the running samples, in no particular order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from actors.policy.sampling import SamplingParams, sample_key

FinishReason = Literal["stop", "length", "deadline", "cancelled"]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Generate n samples for one prompt.

    prompt_ids: int32 [p], p >= 1. deadline_s: absolute, on the engine's clock; None for none.
    """

    id: str
    prompt_ids: npt.NDArray[np.int32]
    n: int
    sampling: SamplingParams
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One finished sample; the three arrays have one entry per generated token (a stop token included).

    logprobs: natural, of the distribution each token was drawn from. versions: the weights that each token was drawn
    with, non-decreasing. epoch: of the oldest token. first_token_s: seconds from submit; None without a token.
    """

    token_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    epoch: int
    finish_reason: FinishReason
    first_token_s: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Completed:
    """All n samples of a request, in the order of their indices."""

    request_id: str
    samples: list[Sample]


@dataclass(slots=True, eq=False)
class Pending:
    """A request on its way: which samples have a row already, and which are finished."""

    request: Request
    submitted_s: float
    key: int
    samples: list[Sample | None] = field(default_factory=list)
    n_placed: int = 0
    n_finished: int = 0

    @property
    def total(self) -> int:
        """Columns that one of its rows may come to need."""
        return len(self.request.prompt_ids) + self.request.sampling.max_tokens

    @property
    def deadline_s(self) -> float:
        """When it ends, on the engine's clock; infinity for never."""
        return math.inf if self.request.deadline_s is None else self.request.deadline_s

    @property
    def n_unplaced(self) -> int:
        """Samples that still wait for a row."""
        return self.request.n - self.n_placed

    def finish(self, index: int, sample: Sample) -> Completed | None:
        """Store a finished sample; return the request's completion with the last one."""
        self.samples[index] = sample
        self.n_finished += 1
        if self.n_finished < self.request.n:
            return None
        return Completed(self.request.id, [s for s in self.samples if s is not None])

    def abandon(self, reason: FinishReason, epoch: int) -> Completed | None:
        """End every sample that has no row yet, without a token."""
        done = None
        for index in range(self.n_placed, self.request.n):
            empty = np.zeros(0, np.int32)
            done = self.finish(index, Sample(empty, np.zeros(0, np.float32), empty, epoch, reason, None))
        self.n_placed = self.request.n
        return done


class Rows:
    """Per-row state of up to `capacity` running samples."""

    def __init__(self, capacity: int) -> None:
        self.n = 0
        self.owner: list[Pending | None] = [None] * capacity
        self.index = np.zeros(capacity, np.int64)
        self.total = np.zeros(capacity, np.int64)
        self.count = np.zeros(capacity, np.int64)
        self.limit = np.zeros(capacity, np.int64)
        self.deadline = np.full(capacity, math.inf)
        self.first_s = np.zeros(capacity)
        self.epoch = np.zeros(capacity, np.int64)
        self.key = np.zeros(capacity, np.uint64)
        self.temperature = np.ones(capacity, np.float32)
        self.top_k = np.zeros(capacity, np.int64)
        self.top_p = np.ones(capacity, np.float32)
        self.last = np.zeros(capacity, np.int64)
        self.stops = np.full((capacity, 1), -1, np.int64)
        self.tokens = np.zeros((capacity, 64), np.int32)
        self.logprobs = np.zeros((capacity, 64), np.float32)
        self.versions = np.zeros((capacity, 64), np.int32)
        self._every = np.arange(capacity)

    def add(self, pending: Pending, k: int) -> None:
        """Give rows n..n+k-1 to the next k samples of a request."""
        sampling, first, n = pending.request.sampling, self.n, self.n + k
        self._widen(sampling.max_tokens, len(sampling.stop_token_ids))
        span = slice(first, n)
        self.owner[first:n] = [pending] * k
        self.index[span] = np.arange(pending.n_placed, pending.n_placed + k)
        self.key[span] = [sample_key(pending.key, int(i)) for i in self.index[span]]
        self.total[span] = pending.total
        self.count[span] = 0
        self.limit[span] = sampling.max_tokens
        self.deadline[span] = pending.deadline_s
        self.temperature[span] = sampling.temperature
        self.top_k[span] = sampling.top_k
        self.top_p[span] = sampling.top_p
        self.stops[span] = -1
        self.stops[span, : len(sampling.stop_token_ids)] = sampling.stop_token_ids
        pending.n_placed += k
        self.n = n

    def record(
        self,
        ids: npt.NDArray[np.int64],
        logprobs: npt.NDArray[np.float32],
        epoch: int,
        version: int,
        now: float,
    ) -> npt.NDArray[np.intp]:
        """Append one token to every row; return the rows that are finished by it, ascending."""
        n = self.n
        count = self.count[:n]
        fresh = count == 0
        if fresh.any():
            self.first_s[:n][fresh] = now
            self.epoch[:n][fresh] = epoch
        every = self._every[:n]
        self.tokens[every, count] = ids
        self.logprobs[every, count] = logprobs
        self.versions[every, count] = version
        self.last[:n] = ids
        count += 1
        return np.flatnonzero((count >= self.limit[:n]) | self._stopped(ids))

    def expired(self, now: float) -> npt.NDArray[np.intp]:
        """Rows whose deadline has come, ascending."""
        return np.flatnonzero(self.deadline[: self.n] <= now)

    def owned_by(self, pending: Pending) -> npt.NDArray[np.intp]:
        """Rows of a request, ascending."""
        return np.array([r for r in range(self.n) if self.owner[r] is pending], np.intp)

    def sample(self, row: int, epoch: int, reason: FinishReason | None) -> tuple[Pending, int, Sample]:
        """Read a row out: its request, its index there and the sample; reason None tells stop from length itself."""
        pending, count = self.owner[row], int(self.count[row])
        assert pending is not None
        if reason is None:
            reason = "stop" if self.tokens[row, count - 1] in self.stops[row] else "length"
        sample = Sample(
            token_ids=self.tokens[row, :count].copy(),
            logprobs=self.logprobs[row, :count].copy(),
            versions=self.versions[row, :count].copy(),
            epoch=int(self.epoch[row]) if count else epoch,
            finish_reason=reason,
            first_token_s=float(self.first_s[row]) - pending.submitted_s if count else None,
        )
        return pending, int(self.index[row]), sample

    def remove(self, gone: Sequence[int]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Close ranks over the rows in `gone` (ascending); return the moves (sources, targets) that were made."""
        n = self.n - len(gone)
        dropped = set(gone)
        targets = np.array([hole for hole in gone if hole < n], np.intp)
        sources = np.array([r for r in range(n, self.n) if r not in dropped], np.intp)
        self.move(sources, targets)
        self.owner[n : self.n] = [None] * len(gone)
        self.n = n
        return sources, targets

    def move(self, sources: npt.NDArray[np.intp], targets: npt.NDArray[np.intp]) -> None:
        """Copy row sources[i] over row targets[i], all at once."""
        if not len(sources):
            return
        for array in self._arrays():
            array[targets] = array[sources]
        owners = [self.owner[s] for s in sources]
        for target, owner in zip(targets, owners, strict=True):
            self.owner[target] = owner

    def _stopped(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return np.asarray((self.stops[: self.n] == ids[:, None]).any(axis=1))

    def _arrays(self) -> list[npt.NDArray[Any]]:
        return [v for v in vars(self).values() if isinstance(v, np.ndarray) and v is not self._every]

    def _widen(self, tokens: int, stops: int) -> None:
        """Make room for `tokens` tokens and `stops` stop ids per row."""
        if tokens > self.tokens.shape[1]:
            more = ((0, 0), (0, max(tokens, 2 * self.tokens.shape[1]) - self.tokens.shape[1]))
            self.tokens = np.pad(self.tokens, more)
            self.logprobs = np.pad(self.logprobs, more)
            self.versions = np.pad(self.versions, more)
        if stops > self.stops.shape[1]:
            self.stops = np.pad(self.stops, ((0, 0), (0, stops - self.stops.shape[1])), constant_values=-1)
