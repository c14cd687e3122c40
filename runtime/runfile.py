"""A run file is read whole or refused with one line: file, key, what was found, what would be right.

Reading also joins the sections that this room defines with the actors' own, which are imported here by dotted path, and
makes every path in the file absolute, so that what was resolved means the same in every process.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import json
import re
import tomllib
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError, create_model
from pydantic_core import ErrorDetails

from runtime.config import ACTOR_KINDS, ActorSection, RunConfig
from runtime.errors import ConfigError
from runtime.runcheck import check


def section_path(kind: str) -> str:
    """Dotted path of an actor kind's section class."""
    return f"actors.{kind}.config:{kind.capitalize()}Config"


def section_class(kind: str) -> type[ActorSection]:
    """Import an actor kind's section class.

    Raises:
        ConfigError: it can not be imported or is not an :class:`ActorSection`.
    """
    path = section_path(kind)
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"section [{kind}]: its class {path} can not be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, ActorSection)):
        raise ConfigError(f"section [{kind}]: {path} is not a subclass of runtime.config.ActorSection")
    return found


@functools.cache
def run_class() -> type[RunConfig]:
    """:class:`RunConfig` with the actors' own section classes in it.

    Raises:
        ConfigError: one of them can not be imported.
    """
    sections = {kind: section_class(kind) for kind in ACTOR_KINDS}
    fields: dict[str, Any] = {kind: (cls, Field(default_factory=cls)) for kind, cls in sections.items()}
    return create_model("RunConfig", __base__=RunConfig, __module__=__name__, __doc__=RunConfig.__doc__, **fields)


def load(path: Path | str) -> RunConfig:
    """Read a run file, check it and make its paths absolute.

    Raises:
        ConfigError: it can not be used as it is; the message is one line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file; `busrl init {path}` writes one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can not be read as text: {error}") from error
    return parse(text, str(path), path.resolve().parent)


def parse(text: str, name: str, folder: Path) -> RunConfig:
    """Like :func:`load`, from text; ``name`` is for messages, ``folder`` is what relative paths start from.

    Raises:
        ConfigError: see :func:`load`.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: is not TOML: {error}") from error
    cls = run_class()
    try:
        config = cls.model_validate_json(json.dumps(table, default=str))
    except ValidationError as error:
        raise ConfigError(f"{name}: {explain(error, cls)}") from None
    config = _absolute(config, folder)
    problems = check(config)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigError(f"{name}: {problems[0]}{more}")
    return config


def from_json(text: str) -> RunConfig:
    """The resolved form back: what :func:`to_json` wrote. It was checked when it was loaded.

    Raises:
        ConfigError: it is not a resolved run file of this release.
    """
    cls = run_class()
    try:
        return cls.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"resolved configuration: {explain(error, cls)}") from None


def to_json(config: RunConfig) -> str:
    """The resolved form, every default filled in and every path absolute."""
    return config.model_dump_json(indent=2)


def explain(error: ValidationError, cls: type[BaseModel]) -> str:
    """The first thing that is wrong, in one line: key, what was found, what would be right."""
    details = error.errors(include_url=False)
    first = details[0]
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    where = _dotted(first["loc"])
    match first["type"]:
        case "extra_forbidden":
            return f"unknown key {where}: {_suggest(first['loc'], cls)}{more}"
        case "missing":
            what = "section" if len(first["loc"]) == 1 else "key"
            return f"missing {what} {where}: {_description(first['loc'], cls)}{more}"
    found = json.dumps(first["input"], default=str)[:80]
    return f"{where}: found {found}, but it {_expected(first)}{more}"


def _expected(problem: ErrorDetails) -> str:
    """What would be right, as the rest of a sentence that begins with "it"."""
    if problem["type"] == "string_pattern_mismatch":
        return f"should match {problem['ctx']['pattern']}"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return re.sub(r"^(String|List|Tuple|Dictionary|Value) should", "should", message)


def _dotted(location: tuple[str | int, ...]) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location if part != "[key]"]
    return "".join(parts).lstrip(".") or "the file"


def _suggest(location: tuple[str | int, ...], cls: type[BaseModel]) -> str:
    known = _fields_at(location[:-1], cls)
    close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    place = _dotted(location[:-1])
    return f"{'the file' if len(location) == 1 else f'[{place}]'} takes {', '.join(known)}"


def _description(location: tuple[str | int, ...], cls: type[BaseModel]) -> str:
    owner = _model_at(location[:-1], cls)
    field = owner.model_fields.get(str(location[-1])) if owner else None
    if field is None:
        return "it is required"
    section = model_of(field.annotation)
    return field.description or (section.__doc__ or "it is required").partition("\n")[0]


def _fields_at(location: tuple[str | int, ...], cls: type[BaseModel]) -> list[str]:
    owner = _model_at(location, cls)
    return list(owner.model_fields) if owner else []


def _model_at(location: tuple[str | int, ...], cls: type[BaseModel]) -> type[BaseModel] | None:
    current: Any = cls
    for part in location:
        if isinstance(current, type) and issubclass(current, BaseModel):
            field = current.model_fields.get(str(part))
            current = field.annotation if field else None
        else:
            current = _value_type(current)
        if current is None:
            return None
    return model_of(current)


def _value_type(annotation: Any) -> Any:
    """What a dict, list or tuple annotation holds."""
    arguments = [argument for argument in get_args(annotation) if argument is not Ellipsis]
    return arguments[-1] if arguments else None


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The model class in an annotation such as ``Section`` or ``Section | None``, or None."""
    if get_origin(annotation) in (Union, UnionType):
        return next((found for argument in get_args(annotation) if (found := model_of(argument))), None)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def _absolute(config: RunConfig, folder: Path) -> RunConfig:
    def resolve(path: str) -> str:
        return str((folder / Path(path).expanduser()).resolve())

    domains = {
        name: domain.model_copy(
            update={
                "files": tuple(map(resolve, domain.files)),
                "eval_files": tuple(map(resolve, domain.eval_files)),
            }
        )
        for name, domain in config.domains.items()
    }
    bus = config.bus
    if bus.credentials is not None:
        bus = bus.model_copy(update={"credentials": resolve(bus.credentials)})
    policy = config.policy.model_copy(update={"path": resolve(config.policy.path)})
    return config.model_copy(update={"domains": domains, "bus": bus, "policy": policy})
