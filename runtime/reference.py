"""The reference of the run file, made from the section classes, so that it is never stale: one row per key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from runtime.runfile import model_of, run_class


@dataclass(frozen=True)
class Row:
    """One key of the run file.

    Attributes:
        section: what stands in brackets above it, such as ``domains.NAME.source``.
        key: its name.
        type: such as ``integer``, ``text``, ``'2m' | 'always'``.
        default: as it would be written in TOML; empty when there is none; "required" when it must be given.
        bounds: such as ``>= 0``; empty when there are none.
        description: what it means, with its unit.
    """

    section: str
    key: str
    type: str
    default: str
    bounds: str
    description: str


def describe() -> list[Row]:
    """Every key of the run file in its order, the actors' own knobs included.

    Raises:
        ConfigError: an actor's section class can not be imported.
    """
    return list(_rows("", run_class()))


def section_titles() -> dict[str, str]:
    """What each section is for: the first line of its class."""
    return dict(_titles("", run_class()))


def _rows(section: str, model: type[BaseModel]) -> Iterator[Row]:
    nested = []
    for name, field in model.model_fields.items():
        inner = _inner_model(field)
        if inner is None:
            yield _row(section, name, field)
        else:
            nested.append((_join(section, name, field), inner))
    for place, inner in nested:
        yield from _rows(place, inner)


def _titles(section: str, model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        inner = _inner_model(field)
        if inner is not None:
            place = _join(section, name, field)
            yield place, (inner.__doc__ or "").strip().partition("\n")[0]
            yield from _titles(place, inner)


def _row(section: str, name: str, field: FieldInfo) -> Row:
    default = "required" if field.is_required() else to_toml(field.get_default(call_default_factory=True))
    return Row(section, name, _type(field.annotation), default, _bounds(field), field.description or "")


def _join(section: str, name: str, field: FieldInfo) -> str:
    place = f"{section}.{name}" if section else name
    return f"{place}.NAME" if get_origin(field.annotation) is dict else place


def _inner_model(field: FieldInfo) -> type[BaseModel] | None:
    annotation = field.annotation
    if get_origin(annotation) is dict:
        annotation = get_args(annotation)[1]
    return model_of(annotation)


def _type(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        return " | ".join(repr(value) for value in get_args(annotation))
    if origin in (Union, UnionType):
        return " or ".join(_type(argument) for argument in get_args(annotation) if argument is not NoneType)
    if origin in (tuple, list):
        return f"list of {_type(get_args(annotation)[0])}"
    if origin is dict or annotation is dict:
        return "table"
    names = {int: "integer", float: "number", str: "text", bool: "true or false"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _bounds(field: FieldInfo) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    found = [
        f"{sign} {getattr(metadata, name)}"
        for metadata in field.metadata
        for name, sign in signs.items()
        if getattr(metadata, name, None) is not None
    ]
    return ", ".join(found)


def to_toml(value: Any) -> str:
    """A value as it would be written in a run file; "" for None."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, dict):
        return "{}" if not value else f"{{ {', '.join(f'{key} = {to_toml(item)}' for key, item in value.items())} }}"
    if isinstance(value, BaseModel):
        return to_toml(value.model_dump(exclude_none=True))
    return json.dumps(value, default=str)
