"""The Llama family (llama, mistral, qwen2, qwen3) with a third of the operations of the library's forward pass.

Promise: the same logits as the model's own forward() in the same weights. Query, key and value projections live in one
matrix, gate and up in another; the model's parameters become views of these, so writing a parameter is all that a
weight update takes. Rotary tables are computed once; residual adds ride on the projections; decode attention is two
batched products over the used columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from actors.policy.decoder import pad_left
from actors.policy.kv_cache import KVCache, LayerKV

_FAMILY = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_STATIC_ROPES = {"default", "linear", "llama3", "yarn"}
_Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def why_not_llama(model: PreTrainedModel) -> str:
    """Say why this module cannot run the model, or return the empty string when it can."""
    config = model.config
    kind = getattr(config, "model_type", "?")
    if _FAMILY.get(kind) != type(model).__name__:
        return f"{type(model).__name__} ({kind}) is none of {', '.join(_FAMILY.values())}"
    if any(name != "full_attention" for name in getattr(config, "layer_types", None) or []):
        return "some layers do not use full attention"
    if getattr(config, "sliding_window", None) is not None and not getattr(config, "layer_types", None):
        return f"sliding_window is {config.sliding_window}"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in _STATIC_ROPES:
        return f"rotary type {rope} changes with the length"
    for layer in model.model.layers:
        for linear in (*_attention_linears(layer), *_mlp_linears(layer)):
            if type(linear) is not nn.Linear:
                return f"a projection is a {type(linear).__name__}, not a plain Linear"
    return ""


def _attention_linears(layer: Any) -> list[nn.Linear]:
    attention = layer.self_attn
    return [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]


def _mlp_linears(layer: Any) -> list[nn.Linear]:
    return [layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj]


@dataclass(frozen=True, slots=True)
class _Layer:
    """One block's weights: qkv [(hq + 2 hkv) d, h], out [h, hq d], gate_up [2 f, h], down [h, f]."""

    norm_1: torch.Tensor
    norm_2: torch.Tensor
    eps: float
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: nn.Linear
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: nn.Linear
    act: Callable[[torch.Tensor], torch.Tensor]


class LlamaDecoder:
    """Runs one Llama-family model; it takes the model over (its projections become views of fused ones)."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        self._model = model
        self._heads = int(config.num_attention_heads)
        self._kv_heads = int(config.num_key_value_heads)
        self._size = int(getattr(config, "head_dim", None) or config.hidden_size // self._heads)
        self._scale = self._size**-0.5
        self._embed: nn.Embedding = model.model.embed_tokens
        self._norm: Any = model.model.norm
        self._head: nn.Linear = model.lm_head
        with torch.no_grad():
            self._layers = [_fuse(layer) for layer in model.model.layers]
        self._nothing = self._embed.weight.new_zeros(())
        self._cos = self._sin = torch.zeros(0)
        self._extend_rope(256)

    def prefill(self, prompts: Sequence[npt.NDArray[np.int32]]) -> tuple[torch.Tensor, list[LayerKV]]:
        """See Decoder.prefill.

        Only the attention pays for padding: everything else runs over the real tokens, one after another; and the
        last block computes no more than keys and values for any token but each prompt's last.
        """
        layout = _Layout(prompts, self._embed.weight.device)
        kv: list[LayerKV] = []
        final = len(self._layers) - 1

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            kv.append((layout.pad(k), layout.pad(v)))
            queries = q.index_select(0, layout.last)[:, :, None] if layer == final else layout.pad(q)
            mask = layout.mask if layout.mask is None or layer != final else layout.mask[:, :, -1:]
            out = F.scaled_dot_product_attention(
                queries,
                *kv[-1],
                attn_mask=mask,
                is_causal=mask is None and layer != final,
                scale=self._scale,
                enable_gqa=self._heads != self._kv_heads,
            )
            return out.flatten(1) if layer == final else layout.unpad(out)

        return self._logits(self._blocks(layout.tokens, layout.positions, layout.width, attend, layout.last)), kv

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """See Decoder.decode."""
        biases = [cache.bias(band)[:, None, None] for band in cache.bands]

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            cache.write(layer, k, v)
            parts = [
                self._attend_over(q[band.start : band.stop], *cache.read(layer, band), bias)
                for band, bias in zip(cache.bands, biases, strict=True)
            ]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        return self._logits(self._blocks(tokens, positions, cache.used + 1, attend))

    def _attend_over(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        """One query per row, [r, heads, size], over [r, kv heads, w, size], bias [r, 1, 1, w]: [r, heads * size]."""
        r, kv_heads, width, size = keys.shape
        q = q.reshape(r * kv_heads, -1, size)
        scores = torch.baddbmm(self._nothing, q, keys.flatten(0, 1).transpose(1, 2), beta=0, alpha=self._scale)
        weights = _softmax(scores.view(r, kv_heads, -1, width).add_(bias)).view(r * kv_heads, -1, width)
        return torch.bmm(weights, values.flatten(0, 1)).view(r, -1)

    def _blocks(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        reach: int,
        attend: _Attend,
        last: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run all blocks over flat tokens [t] at positions [t] < reach; return hidden states [t, h].

        With `last` [b], only these tokens' states [b, h]: the last block's `attend` then returns theirs alone.
        """
        if reach > self._cos.shape[0]:
            self._extend_rope(reach)
        cos = self._cos.index_select(0, positions)
        sin = self._sin.index_select(0, positions)
        rotated = self._heads + self._kv_heads
        x = F.embedding(tokens, self._embed.weight)
        for index, layer in enumerate(self._layers):
            h = _rms_norm(x, layer.norm_1, layer.eps)
            qkv = F.linear(h, layer.qkv, layer.qkv_bias).view(x.shape[0], -1, self._size)
            qk = qkv[:, :rotated]
            if layer.q_norm is not None and layer.k_norm is not None:
                q = _rms_norm(qk[:, : self._heads], layer.q_norm, layer.eps)
                qk = torch.cat((q, _rms_norm(qk[:, self._heads :], layer.k_norm, layer.eps)), 1)
            qk = _rotate(qk, cos, sin)
            mixed = attend(index, qk[:, : self._heads], qk[:, self._heads :], qkv[:, rotated:])
            if last is not None and index == len(self._layers) - 1:
                x = x.index_select(0, last)
            x = _project(x, mixed, layer.out)
            h = _rms_norm(x, layer.norm_2, layer.eps)
            gate, up = F.linear(h, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            x = _project(x, layer.act(gate).mul_(up), layer.down)
        return x

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        x = _rms_norm(x, self._norm.weight, self._norm.variance_epsilon)
        return F.linear(x, self._head.weight, self._head.bias)

    def _extend_rope(self, reach: int) -> None:
        """Tabulate cos and signed sin [positions, 1, size] from the model's own rotary module."""
        size = 1 << max(reach - 1, 1).bit_length()
        weight = self._embed.weight
        positions = torch.arange(size, device=weight.device)[None]
        cos, sin = self._model.model.rotary_emb(weight.new_zeros(1), positions)
        sin = sin[0].clone()
        sin[:, : self._size // 2].neg_()
        self._cos, self._sin = cos[0][:, None].contiguous(), sin[:, None].contiguous()


class _Layout:
    """Where the tokens of several prompts are: one after another [t], and padded on the left [b, width].

    last [b]: each prompt's last among the t. mask: causal and unpadded, bool [b, 1, width, width]; padding sees
    itself, for a row that sees nothing is NaN; None when there is no padding.
    """

    def __init__(self, prompts: Sequence[npt.NDArray[np.int32]], device: torch.device) -> None:
        def put(array: npt.NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        lengths = np.array([len(p) for p in prompts])
        self.width, self._b = int(lengths.max()), len(prompts)
        _, real = pad_left(prompts)
        self.tokens = put(np.concatenate(prompts).astype(np.int64))
        self.positions = put(np.concatenate([np.arange(n) for n in lengths]))
        self.last = put(np.cumsum(lengths) - 1)
        self._padded = not real.all()
        self._slots = put(np.flatnonzero(real)) if self._padded else self.last
        self.mask: torch.Tensor | None = None
        if self._padded:
            square = np.tril(np.ones((self.width, self.width), np.bool_))
            self.mask = put(((square & real[:, None]) | np.eye(self.width, dtype=np.bool_))[:, None])

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """[t, heads, size] -> [b, heads, width, size], zeros on the padding."""
        if not self._padded:
            return x.reshape(self._b, self.width, *x.shape[1:]).transpose(1, 2)
        padded = x.new_zeros(self._b * self.width, *x.shape[1:]).index_copy_(0, self._slots, x)
        return padded.view(self._b, self.width, *x.shape[1:]).transpose(1, 2)

    def unpad(self, x: torch.Tensor) -> torch.Tensor:
        """[b, heads, width, size] -> [t, heads * size]."""
        flat = x.transpose(1, 2).reshape(self._b * self.width, -1)
        return flat.index_select(0, self._slots) if self._padded else flat


def _fuse(layer: Any) -> _Layer:
    """Lay the block's parallel projections into one matrix each and make the parameters views of it."""
    q, k, v, out = _attention_linears(layer)
    gate, up, down = _mlp_linears(layer)
    attention = layer.self_attn
    qkv, qkv_bias = _share_matrix([q, k, v])
    gate_up, gate_up_bias = _share_matrix([gate, up])
    q_norm, k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return _Layer(
        norm_1=layer.input_layernorm.weight,
        norm_2=layer.post_attention_layernorm.weight,
        eps=layer.input_layernorm.variance_epsilon,
        qkv=qkv,
        qkv_bias=qkv_bias,
        q_norm=None if q_norm is None else q_norm.weight,
        k_norm=None if k_norm is None else k_norm.weight,
        out=out,
        gate_up=gate_up,
        gate_up_bias=gate_up_bias,
        down=down,
        act=layer.mlp.act_fn,
    )


def _share_matrix(linears: list[nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Concatenate the linears' weights (and biases) and point their parameters into the result."""
    weight = torch.cat([linear.weight.data for linear in linears])
    biases = [linear.bias.data for linear in linears if linear.bias is not None]
    bias = torch.cat(biases) if biases else None
    first = 0
    for linear in linears:
        last = first + linear.out_features
        linear.weight.data = weight[first:last]
        if bias is not None:
            linear.bias.data = bias[first:last]
        first = last
    return weight, bias


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm over the last dimension (Zhang and Sennrich 2019)."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [t, heads, size]; sin carries the sign of its half (Su et al. 2021)."""
    half = x.shape[-1] // 2
    swapped = x.view(*x.shape[:-1], 2, half).flip(-2).flatten(-2)
    return torch.mul(x, cos).addcmul_(swapped, sin)


def _project(residual: torch.Tensor, x: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
    """residual + linear(x), as one product."""
    total = torch.addmm(residual, x, linear.weight.t())
    return total if linear.bias is None else total.add_(linear.bias)


def _softmax(scores: torch.Tensor) -> torch.Tensor:
    """Softmax in float32, back in the scores' dtype."""
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
