"""Log-probabilities of given tokens under a policy, for training: exact, padded, and cheap in memory.

Only positions whose token is scored go through the head, and never more rows of it at once than a byte budget
allows. Padding and the split into micro-batches do not change a value beyond float rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

HEAD_CHUNK_BYTES = 256 << 20
"""Float32 bytes of logits that the head may hold at once; above it, rows are scored in recomputed chunks."""

CPU_PADDING_TOKENS = 128
"""See :func:`padding_allowance`."""

_RESCALING = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")


class UnscorableSequence(ValueError):
    """A sequence whose tokens can not be scored: empty, wrong shape, or scored at its first token."""


@dataclass(frozen=True)
class ScoredSequence:
    """Token ids of prompt and response, shape (t,), and which of them are scored, bool of shape (t,).

    The first token has no predecessor and can not be scored. ``temperature`` is the one it was sampled at.
    """

    ids: npt.NDArray[np.int32]
    scored: npt.NDArray[np.bool_]
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or self.ids.size == 0 or self.ids.shape != self.scored.shape:
            raise UnscorableSequence(f"ids of shape {self.ids.shape} with scored of shape {self.scored.shape}")
        if self.scored[0]:
            raise UnscorableSequence("the first token of a sequence has no log-prob: give it a prompt")
        if not self.temperature > 0:
            raise UnscorableSequence(f"temperature {self.temperature}: only samples at a temperature above 0 have one")


@dataclass
class PaddedBatch:
    """Rows padded on the right: ``ids`` (b, t), and the r scored tokens in sequence order.

    ``rows`` and ``columns`` (r,) point at the hidden state that predicts each; ``targets`` (r,) are their ids.
    ``temperatures`` is (r, 1), or None where all are 1. ``positions`` (b, t) and an additive ``mask`` (b, 1, t, t)
    are None where a row is one sequence.
    """

    ids: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    temperatures: Tensor | None
    positions: Tensor | None = None
    mask: Tensor | None = None

    @property
    def n_scored(self) -> int:
        """Number of scored tokens."""
        return int(self.targets.shape[0])


def micro_batches(
    lengths: Sequence[int], micro_batch_tokens: int, padding_tokens: int | None = None
) -> Iterator[list[int]]:
    """Yield lists of indices that cover ``lengths`` once, longest first, each of at most ``micro_batch_tokens``.

    Tokens are counted as padded: sequences times the longest. A single sequence above the budget goes alone. A
    micro-batch also ends before its padding exceeds ``padding_tokens`` (None: padding is free).
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    part: list[int] = []
    padding = 0
    for i in order:
        longest = lengths[part[0]] if part else lengths[i]
        padding += longest - lengths[i]
        full = (len(part) + 1) * longest > micro_batch_tokens
        if part and (full or (padding_tokens is not None and padding > padding_tokens)):
            yield part
            part, padding = [], 0
        part.append(i)
    if part:
        yield part


def padding_allowance(device: torch.device) -> int | None:
    """Return the padding that costs as much as one more forward and backward pass, in tokens; None for no bound.

    A small policy on a CPU core spends as long on about a hundred tokens as on the fixed cost of a pass; a GPU's
    passes are bound by their launch, so there padding is free.
    """
    return CPU_PADDING_TOKENS if device.type == "cpu" else None


def pad(sequences: Sequence[ScoredSequence], device: torch.device) -> PaddedBatch:
    """Return the padded batch of ``sequences`` on ``device``. Padding has id 0 and is never scored."""
    longest = max(sequence.ids.size for sequence in sequences)
    ids = np.zeros((len(sequences), longest), dtype=np.int64)
    scored = np.zeros((len(sequences), longest), dtype=np.bool_)
    for row, sequence in enumerate(sequences):
        ids[row, : sequence.ids.size] = sequence.ids
        scored[row, : sequence.scored.size] = sequence.scored
    rows, columns = np.nonzero(scored)
    return scored_batch(ids, rows, columns - 1, sequences, device)


def scored_batch(
    ids: npt.NDArray[np.int64],
    rows: npt.NDArray[np.intp],
    columns: npt.NDArray[np.intp],
    sequences: Sequence[ScoredSequence],
    device: torch.device,
) -> PaddedBatch:
    """Return the batch of ``ids`` (b, t) that scores ``sequences``, one after the other, at rows and columns (r,)."""
    targets = np.concatenate([sequence.ids[sequence.scored] for sequence in sequences]).astype(np.int64)
    temperatures = None
    if any(sequence.temperature != 1.0 for sequence in sequences):
        values = [np.full(sequence.scored.sum(), sequence.temperature, np.float32) for sequence in sequences]
        temperatures = torch.from_numpy(np.concatenate(values)[:, None]).to(device)
    return PaddedBatch(
        ids=torch.from_numpy(ids).to(device),
        rows=torch.from_numpy(rows).to(device),
        columns=torch.from_numpy(columns).to(device),
        targets=torch.from_numpy(targets).to(device),
        temperatures=temperatures,
    )


def token_logprobs(
    model: PreTrainedModel, batch: PaddedBatch, *, chunk_bytes: int = HEAD_CHUNK_BYTES
) -> tuple[Tensor, Tensor]:
    """Return log-probs (r,) of the scored tokens, with gradient, and the entropy (r,) at each, without.

    Both are float32 (float64 of a float64 model), natural, of the distribution that was sampled from: logits over
    temperature. Right padding under a causal model needs no attention mask: no real token sees what stands behind it.
    """
    inputs: dict[str, Any] = {"input_ids": batch.ids, "use_cache": False}
    if batch.mask is not None:
        inputs |= {"position_ids": batch.positions, "attention_mask": batch.mask}
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if head is None or any(getattr(model.config, name, None) for name in _RESCALING):
        logits = model(**inputs).logits
        return _score(logits[batch.rows, batch.columns], batch.targets, batch.temperatures)
    hidden = model.base_model(**inputs).last_hidden_state
    hidden = hidden[batch.rows, batch.columns]
    per_chunk = max(1, chunk_bytes // (4 * head.weight.shape[0]))
    if batch.n_scored <= per_chunk:
        return _score(head(hidden), batch.targets, batch.temperatures)
    return _scored_in_chunks(head, hidden, batch, per_chunk)


def _scored_in_chunks(
    head: torch.nn.Module, hidden: Tensor, batch: PaddedBatch, per_chunk: int
) -> tuple[Tensor, Tensor]:
    """Score ``per_chunk`` rows at a time; the backward pass computes each chunk's logits again."""

    def scored(rows: Tensor, targets: Tensor, temperatures: Tensor | None) -> tuple[Tensor, Tensor]:
        return _score(head(rows), targets, temperatures)

    parts = []
    for start in range(0, batch.n_scored, per_chunk):
        piece = slice(start, start + per_chunk)
        temperatures = None if batch.temperatures is None else batch.temperatures[piece]
        parts.append(checkpoint(scored, hidden[piece], batch.targets[piece], temperatures, use_reentrant=False))
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _score(logits: Tensor, targets: Tensor, temperatures: Tensor | None) -> tuple[Tensor, Tensor]:
    """Log-probs of ``targets`` and detached entropies from logits (r, vocabulary), at least in float32."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if temperatures is not None:
        logits = logits / temperatures
    distribution = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
        entropy = -(distribution.exp() * distribution).sum(-1)
    return distribution.gather(-1, targets[:, None]).squeeze(-1), entropy
