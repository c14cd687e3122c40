"""The torch generation engine: continuous batching over a KV cache, one decode step per call.

Promise: `step()` draws exactly one token for every running sample, with the weights that are loaded at that
moment, and records that version and the log-prob of the true sampling distribution with it. A finished sample
leaves the batch at once and its row is refilled from the queue; a request comes out exactly once, when its
last sample is finished. Weights are swapped between two steps, with sequences in flight and their KV kept. No
threads, no wall clock of its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from actors.policy.decoder import decoder_for
from actors.policy.engine_errors import EngineError, PromptTooLong, UnsupportedModel
from actors.policy.kv_cache import BAND_BYTES, KVCache, LayerKV
from actors.policy.rows import Completed, FinishReason, Pending, Request, Rows, Sample
from actors.policy.sampling import RowSampling, SamplingParams, draw, sample_key, uniforms
from actors.policy.weight_swap import matched_weights

__all__ = [
    "Completed",
    "EngineError",
    "EngineStats",
    "PromptTooLong",
    "Request",
    "Sample",
    "SamplingParams",
    "TorchEngine",
    "UnsupportedModel",
]

_PATIENCE_STEPS = 4


@dataclass(slots=True)
class EngineStats:
    """Totals since the start; step_s holds prefill_s."""

    generated_tokens: int = 0
    prompt_tokens: int = 0
    steps: int = 0
    step_s: float = 0.0
    prefill_s: float = 0.0
    completed_requests: int = 0
    swaps: int = 0
    swap_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Prompts:
    """Prefilled prompts: last logits [b, vocabulary] and left-padded KV."""

    logits: torch.Tensor
    kv: list[LayerKV]

    def row(self, index: int) -> _Prompts:
        """Copy one prompt out, so that the rest can be freed."""
        one = slice(index, index + 1)
        return _Prompts(self.logits[one].clone(), [(k[one].clone(), v[one].clone()) for k, v in self.kv])


class TorchEngine:
    """Continuous batching for one Hugging Face causal LM, which the engine takes over (mode, storage, weights).

    max_sequences: rows that decode together. kv_tokens: bound on rows x columns of the KV cache (None:
    max_sequences whole contexts). max_prefill_tokens: padded prompt tokens read in one step (a longer prompt is
    read alone). seed: of all requests without one. epoch, version: of the weights that the model holds. clock:
    monotonic seconds. fast: see decoder_for. band_bytes: the keys and values per layer that attending in one more
    band must save. Raises UnsupportedModel for a model without an attention cache.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_sequences: int = 32,
        kv_tokens: int | None = None,
        max_prefill_tokens: int = 4096,
        seed: int = 0,
        epoch: int = 0,
        version: int = 0,
        clock: Callable[[], float] = time.monotonic,
        fast: bool | None = None,
        band_bytes: int = BAND_BYTES,
    ) -> None:
        if max_sequences < 1:
            raise EngineError(f"engine: max_sequences is {max_sequences}; it must be at least 1")
        model.train(False)
        self.model = model
        self.max_sequences = max_sequences
        self.context = _context_of(model)
        self.kv_tokens = max_sequences * self.context if kv_tokens is None else kv_tokens
        self.epoch, self.version = epoch, version
        self.stats = EngineStats()
        self._vocabulary = int(model.config.get_text_config().vocab_size)
        self._device: torch.device = next(model.parameters()).device
        self._max_prefill_tokens = max_prefill_tokens
        self._seed, self._clock = seed, clock
        self._decoder = decoder_for(model, fast=fast)
        self._cache = KVCache(band_bytes)
        self._rows = Rows(max_sequences)
        self._live: dict[str, Pending] = {}
        self._waiting: deque[Pending] = deque()
        self._held: _Prompts | None = None
        self._cancelled: set[str] = set()
        self._ordinal = 0
        self._impatience = 0
        self._ids: torch.Tensor | None = None
        self._sampling: RowSampling | None = None

    @property
    def n_running(self) -> int:
        """Samples in the batch."""
        return self._rows.n

    @property
    def n_waiting(self) -> int:
        """Samples that wait for a row."""
        return sum(p.n_unplaced for p in self._waiting)

    @property
    def kv_allocated_tokens(self) -> int:
        """Tokens that the KV cache has memory for; at most kv_tokens."""
        return self._cache.rows * self._cache.columns

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits, nothing is left to report."""
        return not self._live

    def submit(self, request: Request) -> None:
        """Queue a request. Raises PromptTooLong, or EngineError for one that can never run."""
        prompt, total = request.prompt_ids, len(request.prompt_ids) + request.sampling.max_tokens
        where = f"request {request.id}"
        if request.id in self._live:
            raise EngineError(f"{where}: a request with this id is already in the engine")
        if len(prompt) < 1 or request.n < 1:
            raise EngineError(f"{where}: {len(prompt)} prompt tokens, n = {request.n}; both must be at least 1")
        limit = min(self.context, self.kv_tokens)
        if total > limit:
            raise PromptTooLong(
                f"{where}: a prompt of {len(prompt)} tokens and max_tokens {request.sampling.max_tokens} make "
                f"{total}; the context holds {limit}"
            )
        if int(prompt.min()) < 0 or int(prompt.max()) >= self._vocabulary:
            raise EngineError(f"{where}: a prompt token id lies outside 0..{self._vocabulary - 1}")
        seed = request.sampling.seed
        key = sample_key(self._seed, self._ordinal) if seed is None else sample_key(seed)
        self._ordinal += 1
        pending = Pending(request, self._clock(), key, [None] * request.n)
        self._live[request.id] = pending
        self._waiting.append(pending)

    def cancel(self, request_id: str) -> None:
        """End a request at the next step with what its samples have; unknown ids are ignored."""
        if request_id in self._live:
            self._cancelled.add(request_id)

    @torch.inference_mode()
    def step(self) -> list[Completed]:
        """Draw one token for every running sample, after admitting what fits; return the requests this
        completes.

        Raises EngineError when the logits are not finite; the engine is then of no further use.
        """
        started = self._clock()
        done = self._drop_overdue(started)
        logits = [self._decode()] if self._rows.n else []
        logits += self._admit()
        if logits:
            done += self._draw(logits[0] if len(logits) == 1 else torch.cat(logits))
        for completed in done:
            del self._live[completed.request_id]
        self.stats.completed_requests += len(done)
        self.stats.step_s += self._clock() - started
        return done

    @torch.no_grad()
    def load_weights(self, tensors: Mapping[str, torch.Tensor], epoch: int, version: int) -> None:
        """Copy new weights into the model; every token drawn from now on carries `version`, the KV is kept.

        Raises EngineError naming what is missing, unexpected or mis-shaped, with nothing changed.
        """
        started = self._clock()
        for target, source in matched_weights(self.model, tensors):
            target.copy_(source)  # blocking: the caller may reuse its buffers
        self.epoch, self.version = epoch, version
        self._held = None
        self.stats.swaps += 1
        self.stats.swap_s += self._clock() - started

    def _decode(self) -> torch.Tensor:
        """Feed every row its last token; logits [n, vocabulary]."""
        cache, n = self._cache, self._rows.n
        cache.make_column()
        if not cache.bands:
            sources, targets = cache.arrange()
            if len(sources):
                self._rows.move(sources, targets)
                self._rows_changed()
        ids = self._ids
        if ids is None:
            ids = torch.from_numpy(self._rows.last[:n].copy()).to(self._device, non_blocking=True)
        positions = torch.from_numpy(cache.lengths[:n].copy()).to(self._device, non_blocking=True)
        logits = self._decoder.decode(ids, positions, cache)
        cache.advance()
        return logits

    def _draw(self, logits: torch.Tensor) -> list[Completed]:
        """Draw from logits [n, vocabulary], record, and take the finished rows out."""
        rows, n = self._rows, self._rows.n
        if self._sampling is None:
            self._sampling = RowSampling.of(rows.temperature[:n], rows.top_k[:n], rows.top_p[:n], self._device)
        uniform = torch.from_numpy(uniforms(rows.key[:n], rows.count[:n])).to(self._device, non_blocking=True)
        self._ids, logprobs = draw(logits, self._sampling, uniform)
        if self._device.type == "cpu":
            ids_host, logprobs_host = self._ids.numpy(), logprobs.numpy()
        else:
            # One transfer, one synchronisation per step; float64 holds any token id exactly.
            both = torch.stack((self._ids.double(), logprobs.double())).cpu().numpy()
            ids_host, logprobs_host = both[0].astype(np.int64), both[1].astype(np.float32)
        if not np.isfinite(logprobs_host).all():
            raise EngineError(f"weights {self.epoch}.{self.version}: the logits are not finite")
        finished = rows.record(ids_host, logprobs_host, self.epoch, self.version, self._clock())
        self.stats.generated_tokens += n
        self.stats.steps += 1
        return self._finish(finished.tolist(), None)

    def _finish(self, gone: list[int], reason: FinishReason | None) -> list[Completed]:
        """Read out and remove rows (ascending); return the requests that this completes."""
        if not gone:
            return []
        done = []
        for row in gone:
            pending, index, sample = self._rows.sample(row, self.epoch, reason)
            completed = pending.finish(index, sample)
            if completed is not None:
                done.append(completed)
        sources, targets = self._rows.remove(gone)
        self._cache.keep(sources, targets, self._rows.n)
        self._rows_changed()
        return done

    def _rows_changed(self) -> None:
        self._ids = None
        self._sampling = None

    def _drop_overdue(self, now: float) -> list[Completed]:
        """End what is past its deadline or was cancelled, running and waiting."""
        done = self._finish(self._rows.expired(now).tolist(), "deadline") if self._rows.n else []
        for pending in [p for p in self._waiting if p.request.deadline_s is not None and p.request.deadline_s <= now]:
            done += self._abandon(pending, "deadline")
        for request_id in self._cancelled & self._live.keys():
            pending = self._live[request_id]
            done += self._finish(self._rows.owned_by(pending).tolist(), "cancelled")
            if pending.n_unplaced:
                done += self._abandon(pending, "cancelled")
        self._cancelled.clear()
        return done

    def _abandon(self, pending: Pending, reason: FinishReason) -> list[Completed]:
        """Take a waiting request out of the queue, ending its unplaced samples."""
        if self._waiting[0] is pending:
            self._held = None
        self._waiting.remove(pending)
        completed = pending.abandon(reason, self.epoch)
        return [completed] if completed is not None else []

    def _admit(self) -> list[torch.Tensor]:
        """Give free rows to waiting samples, reading new prompts; return the new rows' logits, in row order."""
        if not self._waiting or not self._worth_admitting():
            return []
        plan = self._plan()
        if not plan:
            return []
        started = self._clock()
        logits = []
        if self._held is not None:
            pending, k = plan.pop(0)
            logits.append(self._place(self._held, [(pending, k)]))
            if not pending.n_unplaced:
                self._held = None
                self._waiting.popleft()
        if plan:
            prompts = self._prefill([p for p, _ in plan])
            logits.append(self._place(prompts, plan))
            for index, (pending, _) in enumerate(plan):
                if pending.n_unplaced:
                    self._held = prompts.row(index)
                else:
                    self._waiting.popleft()
        self._rows_changed()
        self.stats.prefill_s += self._clock() - started
        return logits

    def _worth_admitting(self) -> bool:
        """Whether to read prompts now: reading a few at a time costs little more than reading one."""
        free = self.max_sequences - self._rows.n
        if free == 0:
            return False
        self._impatience += 1
        if self._rows.n and free < max(1, self.max_sequences // 8) and self._impatience < _PATIENCE_STEPS:
            return False
        self._impatience = 0
        return True

    def _plan(self) -> list[tuple[Pending, int]]:
        """Choose (request, rows) from the head of the queue, within rows, KV tokens and prefill tokens."""
        n, columns = self._rows.n, self._running_columns()
        plan: list[tuple[Pending, int]] = []
        n_read = width = 0
        for pending in self._waiting:
            wanted = max(columns, pending.total)
            k = min(pending.n_unplaced, self._row_limit(wanted) - n)
            if k <= 0:
                break
            if not (self._held is not None and not plan):
                width = max(width, len(pending.request.prompt_ids))
                if n_read and (n_read + 1) * width > self._max_prefill_tokens:
                    break
                n_read += 1
            plan.append((pending, k))
            n, columns = n + k, wanted
            if pending.n_unplaced > k:
                break
        return plan

    def _running_columns(self) -> int:
        """Columns that the running rows may come to need."""
        return int(self._rows.total[: self._rows.n].max()) if self._rows.n else 0

    def _row_limit(self, needed: int) -> int:
        """Rows that may run when one of them needs that many columns."""
        return min(self.max_sequences, self.kv_tokens // needed)

    def _allocated_columns(self, needed: int) -> int:
        """Columns to allocate: slack makes sliding to the front rare, but it never costs a row."""
        return max(needed, min(needed + needed // 4 + 32, self.kv_tokens // self._row_limit(needed)))

    def _prefill(self, pendings: list[Pending]) -> _Prompts:
        """Read prompts."""
        prompts = [p.request.prompt_ids for p in pendings]
        self.stats.prompt_tokens += sum(map(len, prompts))
        return _Prompts(*self._decoder.prefill(prompts))

    def _place(self, prompts: _Prompts, plan: list[tuple[Pending, int]]) -> torch.Tensor:
        """Give each (request, k) its rows, copying the prompt's KV; return the rows' logits."""
        counts = [k for _, k in plan]
        needed = max(self._running_columns(), *(p.total for p, _ in plan))
        n = self._rows.n + sum(counts)
        if n > self._cache.rows or needed > self._cache.columns:
            self._cache.reserve(self._row_limit(needed), self._allocated_columns(needed), prompts.kv)
        source = torch.from_numpy(np.repeat(np.arange(len(plan)), counts)).to(self._device, non_blocking=True)
        lengths = np.repeat([len(p.request.prompt_ids) for p, _ in plan], counts)
        self._cache.place(prompts.kv, source, lengths)
        for pending, k in plan:
            self._rows.add(pending, k)
        return prompts.logits.index_select(0, source)


def _context_of(model: PreTrainedModel) -> int:
    """Tokens that the model's positions reach."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        value = getattr(model.config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    raise EngineError(f"{type(model).__name__}: its config names no max_position_embeddings")
