"""One forward pass of a causal language model over many sequences at different positions.

Promise: a decoder is a pure function of the weights, the tokens and the KV cache; whichever decoder
`decoder_for` picks, the logits are those of the model's own forward pass. `GenericDecoder` serves every
Hugging Face causal LM that keeps an attention cache; a family with a faster way has its own module.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from actors.policy.engine_errors import UnsupportedModel
from actors.policy.kv_cache import KVCache, LayerKV


class Decoder(Protocol):
    """What the engine needs of a model."""

    def prefill(self, prompts: Sequence[npt.NDArray[np.int32]]) -> tuple[torch.Tensor, list[LayerKV]]:
        """Read prompts, b arrays of ids -> logits after the last token [b, vocabulary] and their KV, padded on
        the left to the longest: per layer keys and values [b, heads, longest, size], the padding finite.
        """
        ...

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """Read one token per running row (int64 [n]) at its position [n], append its KV -> logits [n,
        vocabulary].
        """
        ...


def decoder_for(model: PreTrainedModel, *, fast: bool | None = None) -> Decoder:
    """Choose how to run the model; fast=None takes the fast path where there is one, False never, True must.

    Raises UnsupportedModel for a recurrent model, or when fast is True and the model has no fast path.
    """
    from actors.policy.llama_decoder import LlamaDecoder, why_not_llama

    reason = why_not_llama(model) if fast is not False else "not asked for"
    if not reason:
        return LlamaDecoder(model)
    if fast:
        raise UnsupportedModel(f"{type(model).__name__} has no fast decoder: {reason}")
    return GenericDecoder(model)


def pad_left(prompts: Sequence[npt.NDArray[np.int32]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Lay prompts out as [b, longest], ending in the last column; the ids and which of them are real."""
    width = max(map(len, prompts))
    tokens = np.zeros((len(prompts), width), np.int64)
    valid = np.zeros((len(prompts), width), np.bool_)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = prompt
        valid[row, width - len(prompt) :] = True
    return tokens, valid


class GenericDecoder:
    """Any Hugging Face causal LM, through its own forward() with a cache that writes into the engine's."""

    def __init__(self, model: PreTrainedModel) -> None:
        if getattr(model, "_is_stateful", False):
            raise UnsupportedModel(
                f"{type(model).__name__} keeps a recurrent state; the engine needs an attention cache"
            )
        self._model = model
        self._device: torch.device = next(model.parameters()).device
        accepted = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in accepted
        self._keep_last: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._view: _CacheView | None = None

    def prefill(self, prompts: Sequence[npt.NDArray[np.int32]]) -> tuple[torch.Tensor, list[LayerKV]]:
        """See Decoder.prefill. Padding is zeroed in the KV: a fully masked query may have come out as NaN."""
        cache = DynamicCache()
        ids, real = pad_left(prompts)
        tokens, valid = (torch.from_numpy(x).to(self._device, non_blocking=True) for x in (ids, real))
        logits = self._forward(tokens, (valid.cumsum(-1) - 1).clamp_(min=0), valid, cache)
        layers: list[Any] = cache.layers
        kv: list[LayerKV] = [(layer.keys, layer.values) for layer in layers]
        if real.all():
            return logits, kv
        padding = ~valid[:, None, :, None]
        return logits, [(keys.masked_fill(padding, 0), values.masked_fill(padding, 0)) for keys, values in kv]

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """See Decoder.decode."""
        if self._view is None or self._view.store is not cache:
            self._view = _CacheView(cache)
        return self._forward(tokens[:, None], positions[:, None], cache.valid(), self._view)

    def _forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, valid: torch.Tensor, cache: Cache
    ) -> torch.Tensor:
        extra = dict(self._keep_last)
        if self._takes_positions:
            extra["position_ids"] = positions
        output = self._model(
            input_ids=tokens, attention_mask=valid.long(), past_key_values=cache, use_cache=True, **extra
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits


class _CacheView(Cache):
    """The engine's cache as transformers sees it: a left-padded batch of `used` columns."""

    def __init__(self, store: KVCache) -> None:
        super().__init__(layers=[_LayerView(store, index) for index in range(len(store.keys))])
        self.store = store


class _LayerView(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer of the engine's cache."""

    is_sliding = False

    def __init__(self, store: KVCache, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._store, self._index = store, index

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the store was allocated by the engine."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> LayerKV:
        """Write [n, heads, 1, size] and return every column up to it."""
        self._store.write(self._index, key_states[:, :, 0], value_states[:, :, 0])
        return self._store.read(self._index, self._store.whole)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(columns, offset) of the mask."""
        return self._store.used + query_length, 0

    def get_seq_length(self) -> int:
        """Columns already written."""
        return self._store.used

    def get_max_length(self) -> int:
        """No limit of its own."""
        return -1
