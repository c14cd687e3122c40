"""A policy's tensors as the bytes of a safetensors file and back, without a copy on the reading side."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any

import torch

_NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_ALIGN = 64


class DamagedWeights(ValueError):
    """Bytes that are no safetensors file, or tensors that can not travel."""


def to_chunks(tensors: Mapping[str, torch.Tensor]) -> list[memoryview]:
    """The header and one chunk per tensor; concatenated they are a safetensors file.

    The chunks of tensors on the CPU share their memory: write them before the next optimiser step.
    """
    header: dict[str, object] = {}
    chunks: list[memoryview] = []
    offset = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise DamagedWeights(f"tensor {name} has dtype {tensor.dtype}, which can not travel")
        plain = tensor.detach().to("cpu").contiguous()
        data = plain.view(-1).view(torch.uint8).numpy().data if plain.numel() else memoryview(b"")
        end = offset + len(data)
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        chunks.append(data)
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN)
    return [memoryview(len(text).to_bytes(8, "little") + text), *chunks]


def from_bytes(payload: memoryview) -> dict[str, torch.Tensor]:
    """Tensors over the payload's own memory: read them, never write them.

    Raises:
        DamagedWeights: not a safetensors file.
    """
    try:
        length = int.from_bytes(payload[:8], "little")
        header = json.loads(bytes(payload[8 : 8 + length]))
        body = payload[8 + length :]
        return {name: _tensor(body, entry) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise DamagedWeights(f"not a safetensors file of {len(payload)} bytes: {error}") from error


def _tensor(body: memoryview, entry: Mapping[str, Any]) -> torch.Tensor:
    dtype, shape = _DTYPES[entry["dtype"]], [int(size) for size in entry["shape"]]
    start, end = (int(offset) for offset in entry["data_offsets"])
    if end == start:
        return torch.empty(shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the memory is read-only, and is only read
        flat: torch.Tensor = torch.frombuffer(body[start:end], dtype=dtype)
    return flat.view(shape)
