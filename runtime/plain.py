"""A record as plain data that JSON can hold, and as one line for people."""

from __future__ import annotations

import base64
from enum import Enum
from typing import Any

import numpy as np
from pydantic import BaseModel

WIDTH = 40
LINE = 400


def plain(value: Any) -> Any:
    """Plain data: arrays become lists, bytes base64 text, enums their values."""
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, Enum):
        return plain(value.value)
    return value.item() if isinstance(value, np.generic) else value


def one_line(record: BaseModel) -> str:
    """Its fields as ``name=value``, long ones shortened, arrays as their length."""
    parts = [f"{name}={_short(getattr(record, name))}" for name in type(record).model_fields]
    line = " ".join(parts)
    return line if len(line) <= LINE else f"{line[:LINE]} ..."


def _short(value: Any) -> str:
    if isinstance(value, BaseModel):
        first = next(iter(type(value).model_fields))
        return f"<{_short(getattr(value, first))}>"
    if isinstance(value, np.ndarray):
        return f"[{value.shape[0]}]"
    if isinstance(value, list | tuple) and value and isinstance(value[0], BaseModel):
        return f"[{len(value)} x {type(value[0]).__name__}]"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return repr(value if len(value) <= WIDTH else f"{value[:WIDTH]}...")
    return str(plain(value))[:WIDTH]
