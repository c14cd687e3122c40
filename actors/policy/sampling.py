"""What distribution a token is drawn from, and the draw itself.

Promise: the log-prob that comes back is that of the distribution the token was really drawn from (after temperature,
top-k and top-p, renormalised), and the draw depends on the sample's own key and position alone: the same request with
the same seed yields the same uniforms whatever else shares the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_UNIT = 2.0**-53
_ALL = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request's tokens are drawn.

    max_tokens: most tokens per sample (>= 1). temperature: 0 is greedy. top_p in (0, 1], 1 keeps all. top_k: 0 keeps
    all. stop_token_ids: a sample ends after one of these (the stop token is part of the sample). seed: the draws of
    this request alone; None derives them from the engine's seed and the order of submission.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = field(default=())
    seed: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError naming the field that is out of range."""
        object.__setattr__(self, "stop_token_ids", tuple(int(t) for t in self.stop_token_ids))
        if self.max_tokens < 1:
            raise ValueError(f"sampling: max_tokens is {self.max_tokens}; it must be at least 1")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"sampling: temperature is {self.temperature}; it must be 0 (greedy) or a positive number")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampling: top_p is {self.top_p}; it must be in (0, 1]")
        if self.top_k < 0:
            raise ValueError(f"sampling: top_k is {self.top_k}; it must be 0 (keep all) or positive")
        if any(t < 0 for t in self.stop_token_ids):
            raise ValueError(f"sampling: stop_token_ids {self.stop_token_ids} has a negative id")


def sample_key(*parts: int) -> int:
    """Hash integers (seed, request ordinal, sample index) into one 64-bit key."""
    key = np.zeros(1, np.uint64)
    for part in parts:
        key = _splitmix(key ^ np.uint64(part % 2**64))
    return int(key[0])


def uniforms(keys: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Counter-based uniforms in [0, 1), one per (key, position) [n] (SplitMix64; Steele, Lea, Flood 2014)."""
    bits = _splitmix(keys + positions.astype(np.uint64) * _GOLDEN) >> np.uint64(11)
    return bits.astype(np.float64) * _UNIT


def _splitmix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's step and finaliser, elementwise, modulo 2**64."""
    z = state + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class RowSampling:
    """The sampling settings of n rows on the model's device; None where no row needs that step.

    temperature [n, 1] float32 (1 for greedy rows); greedy [n] bool; top_k [n, 1] int64 (huge where off);
    top_p [n, 1] float32 (1 where off). widest: the largest top_k when every row has one.
    """

    temperature: torch.Tensor | None
    greedy: torch.Tensor | None
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    widest: int | None

    @classmethod
    def of(
        cls,
        temperature: npt.NDArray[np.float32],
        top_k: npt.NDArray[np.int64],
        top_p: npt.NDArray[np.float32],
        device: torch.device,
    ) -> RowSampling:
        """Build from host arrays [n] (temperature 0 = greedy, top_k 0 = all); greedy rows are never truncated."""
        greedy = temperature == 0
        flat = np.where(greedy, np.float32(1), temperature)
        k = np.where(greedy | (top_k == 0), _ALL, top_k)
        p = np.where(greedy, np.float32(1), top_p)
        truncated = bool((k < _ALL).any() or (p < 1).any())

        def column(values: npt.NDArray[np.generic]) -> torch.Tensor:
            return torch.from_numpy(values[:, None]).to(device, non_blocking=True)

        return cls(
            temperature=column(flat) if bool((flat != 1).any()) else None,
            greedy=torch.from_numpy(greedy).to(device, non_blocking=True) if bool(greedy.any()) else None,
            top_k=column(k) if truncated else None,
            top_p=column(p) if truncated else None,
            widest=int(k.max()) if bool((k < _ALL).all()) else None,
        )


def draw(logits: torch.Tensor, rows: RowSampling, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row: (ids [n] int64, log-probs [n] float32) from logits [n, vocabulary].

    uniform: [n] float64 in [0, 1). Inverse of the cumulative distribution, summed in float64. A greedy row takes the
    arg-max and reports the model's own log-prob at temperature 1 (that of a point mass would be 0 and say nothing).
    """
    scaled = logits.float()
    if rows.temperature is not None:
        scaled = scaled / rows.temperature
    if rows.top_k is not None and rows.top_p is not None:
        ids, logprobs = _draw_truncated(scaled, rows.top_k, rows.top_p, rows.widest, uniform)
    else:
        full = torch.log_softmax(scaled, dim=-1)
        ids = _invert(full, uniform)
        logprobs = full.gather(-1, ids)
    if rows.greedy is not None:
        best = scaled.argmax(-1, keepdim=True)
        greedy = rows.greedy[:, None]
        ids = torch.where(greedy, best, ids)
        logprobs = torch.where(greedy, torch.log_softmax(scaled, dim=-1).gather(-1, best), logprobs)
    return ids.squeeze(-1), logprobs.squeeze(-1)


def _invert(logprobs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """First index [n, 1] whose cumulative probability exceeds uniform; never one of probability 0."""
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    target = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).clamp_(max=logprobs.shape[-1] - 1)


def _draw_truncated(
    scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, widest: int | None, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Top-k, then top-p over what is left, then renormalise; ids and log-probs are [n, 1]."""
    if widest is not None and widest < scaled.shape[-1]:
        ordered, order = scaled.topk(widest, dim=-1)
    else:
        ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[-1], device=ordered.device)
    ordered = ordered.masked_fill(rank >= top_k, -math.inf)
    probs = torch.softmax(ordered, dim=-1)
    before = probs.cumsum(-1) - probs
    outside = (before >= top_p) & (top_p < 1)  # never the first, which has nothing before it
    full = torch.log_softmax(ordered.masked_fill(outside, -math.inf), dim=-1)
    place = _invert(full, uniform)
    return order.gather(-1, place), full.gather(-1, place)
