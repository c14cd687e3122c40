"""Number arrays inside records: little-endian buffers with dtype and shape beside them, never lists.

On the wire an array is the map ``{"d": "<i4", "s": [n], "b": <bytes>}``. A decoded array is read-only and shares the
received buffer. Only one-dimensional arrays of the dtypes below exist, so a hostile header can not make us allocate.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import GetPydanticSchema
from pydantic_core import core_schema


def _to_wire(array: NDArray[Any]) -> dict[str, Any]:
    return {
        "d": array.dtype.str,
        "s": [array.shape[0]],
        "b": array.data.cast("B") if array.size else b"",
    }


def _from_wire(value: Mapping[str, Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    found, shape, buffer = value.get("d"), value.get("s"), value.get("b")
    if found != dtype.str:
        raise ValueError(f"array dtype {reprlib.repr(found)}, expected {dtype.str!r}")
    if not isinstance(buffer, bytes | bytearray | memoryview):
        raise ValueError(f"array buffer is {type(buffer).__name__}, expected bytes")
    if not isinstance(shape, list | tuple) or len(shape) != 1 or type(shape[0]) is not int:
        raise ValueError(f"array shape {reprlib.repr(shape)}, expected one dimension")
    if shape[0] * dtype.itemsize != len(buffer):
        raise ValueError(f"array of {shape[0]} x {dtype.itemsize} bytes, but the buffer has {len(buffer)} bytes")
    return np.frombuffer(buffer, dtype=dtype)


def _from_list(value: Sequence[Any]) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"not a list of numbers: {error}") from error


def _converted(value: NDArray[Any], dtype: np.dtype[Any], kinds: str) -> NDArray[Any]:
    """``value`` as ``dtype``, refused where that would change a number (a token id that wraps is another token)."""
    if value.ndim != 1:
        raise ValueError(f"array has {value.ndim} dimensions, expected 1")
    if value.size and value.dtype.kind not in kinds:
        raise ValueError(f"array dtype {value.dtype.str!r}, expected {dtype.str!r}")
    if value.size and value.dtype != dtype and dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        lowest, highest = int(value.min()), int(value.max())
        if lowest < bounds.min or highest > bounds.max:
            raise ValueError(f"array has values from {lowest} to {highest}, which do not fit {dtype.str!r}")
    return np.ascontiguousarray(value, dtype=dtype)


def _array_schema(dtype_name: str) -> GetPydanticSchema:
    dtype = np.dtype(dtype_name)

    def validate(value: Any) -> NDArray[Any]:
        if isinstance(value, np.ndarray):
            return _converted(value, dtype, dtype.kind)
        if isinstance(value, Mapping):
            return _from_wire(value, dtype)
        if isinstance(value, list | tuple):
            return _converted(_from_list(value), dtype, "iu" if dtype.kind in "iu" else "iuf")
        raise ValueError(f"expected an array of {dtype.str}, got {type(value).__name__}")

    schema = core_schema.no_info_plain_validator_function(
        validate, serialization=core_schema.plain_serializer_function_ser_schema(_to_wire)
    )
    return GetPydanticSchema(lambda _source, _handler: schema)


Int32Array = Annotated[NDArray[np.int32], _array_schema("<i4")]
"""Token ids, weight versions: shape (n,), int32."""

Float32Array = Annotated[NDArray[np.float32], _array_schema("<f4")]
"""Log-probs, per-token values: shape (n,), float32."""

MaskArray = Annotated[NDArray[np.uint8], _array_schema("|u1")]
"""A mask of 0 and 1: shape (n,), uint8."""
