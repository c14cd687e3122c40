"""The reference pages, made from the code: ``python -m ops.reference`` writes them, ``--check`` says what is stale.

Configuration comes from the section classes, topics from the one table, records from their models, commands from the
command line itself and metrics from the table of instruments. So no page can say what the code does not.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import messages
from messages import TOPICS, Record, Retention, Topic
from messages.record import SCHEMAS
from ops.metrics import INSTRUMENTS

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"

_MADE = "<!-- Made by `python -m ops.reference`; edit the code, not this page. -->"
_COLOURS = re.compile(r"\[/?(?:bold|dim|italic|cyan|green|yellow|red|blue|magenta|code)[^\]]*\]")
_MIB = 1 << 20
_RETENTION = {
    Retention.WORK: "until acknowledged; when full, publishing waits",
    Retention.KEEP: "kept",
    Retention.LATEST: "the last per subject",
}


def pages() -> dict[str, Callable[[], str]]:
    """File name to what makes its text."""
    return {"config.md": config, "topics.md": topics, "messages.md": records, "cli.md": cli, "metrics.md": metrics}


def stale(folder: Path = FOLDER) -> list[str]:
    """Names of pages that are not what the code says."""
    return [name for name, make in pages().items() if _read(folder / name) != make()]


def write(folder: Path = FOLDER) -> list[str]:
    """Write every page; returns the names of those that changed."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = stale(folder)
    for name in changed:
        (folder / name).write_text(pages()[name](), encoding="utf-8")
    return changed


# --- pages ------------------------------------------------------------------------------------------------------------


def config() -> str:
    """The run file, key by key."""
    described = importlib.import_module("runtime.reference")
    titles = described.section_titles()
    rows_of: dict[str, list[Any]] = {}
    for row in described.describe():
        rows_of.setdefault(row.section, []).append(row)
    parts = [
        "# Run file",
        "A TOML file. Unknown keys, wrong types and combinations that mean nothing are refused by `busrl check` before "
        "anything starts. `busrl config` prints this table; `busrl init` writes a commented file to begin with.",
    ]
    for section, rows in rows_of.items():
        parts += [f"## [{section}]", titles.get(section, ""), _table(("key", "type", "default", "bounds", "meaning"))]
        parts[-1] += "".join(
            _row(f"`{row.key}`", row.type, _code(row.default), row.bounds, row.description) for row in rows
        )
    return _page(parts)


def topics() -> str:
    """What flows where."""
    parts = [
        "# Topics",
        "Everything on the bus of a run named `RUN`. A topic is one JetStream stream `RUN-TOPIC` with subjects "
        "`busrl.RUN.TOPIC.KEY`. Streams, consumers and each actor's credentials are made from this table, so an actor "
        "can publish and read nothing else. `user` is a person with the command line.",
        _table(("topic", "record", "key", "kept", "bound", "published by", "consumed by")),
    ]
    parts[-1] += "".join(_topic_row(topic) for topic in TOPICS)
    parts += [
        "Consumers of a topic that is kept *until acknowledged* share its messages; of any other topic each reads all.",
        "A message is a parcel: a msgpack list of records of one schema (a group of rollouts is one message). Headers:",
        _headers(),
    ]
    return _page(parts)


def records() -> str:
    """What a message holds."""
    parts = [
        "# Records",
        "A record is a msgpack map inside a parcel. The header `Busrl-Schema` names it and its major version; an "
        "unknown field is ignored, an unknown major version is a dead letter. Arrays are maps "
        "`{d: dtype, s: [n], b: bytes}` with little-endian bytes.",
    ]
    for record in sorted(SCHEMAS.values(), key=lambda record: record.__name__):
        parts += [f"## {record.__name__}", f"`{record.schema_header()}`. {_first_line(record)}", _fields(record)]
    parts.append("# Values inside records")
    for value in _values_inside(SCHEMAS.values()):
        parts += [f"## {value.__name__}", _first_line(value), _fields(value)]
    return _page(parts)


def metrics() -> str:
    """Every instrument."""
    parts = [
        "# Metrics",
        "Histograms have the buckets given. A label is one of a few values and never an id; an attribute that is not "
        "listed here never reaches a backend.",
        _table(("name", "kind", "unit", "meaning", "labels", "buckets")),
    ]
    parts[-1] += "".join(
        _row(
            f"`{row.name}`",
            row.kind,
            f"`{row.unit}`",
            row.description,
            ", ".join(f"`{label}`" for label in row.labels),
            ", ".join(f"{bound:g}" for bound in row.buckets),
        )
        for row in INSTRUMENTS
    )
    parts.append(
        "`rl.telemetry.spans.lost` (counter, `{span}`, label `rl.reason`): spans that reached no backend, because the "
        "queue was full or because the export failed."
    )
    return _page(parts)


def cli() -> str:
    """Every command with its options."""
    typer_main = importlib.import_module("typer.main")
    root = typer_main.get_command(importlib.import_module("runtime.cli.app").app)
    parts = ["# Commands", _plain(root.help or ""), _plain(root.epilog or "")]
    for path, command in _commands("busrl", root):
        parts += [f"## {path}", _plain(command.help or ""), *_parameters(command), _examples(command.epilog or "")]
    return _page([part for part in parts if part])


# --- parts of pages ---------------------------------------------------------------------------------------------------


def _topic_row(topic: Topic) -> str:
    bound = f"{topic.max_bytes // _MIB} MiB"
    bound += f", {topic.max_messages} messages" if topic.max_messages > 0 else ""
    bound += f", {topic.max_age_s // 3600} h" if topic.max_age_s else ""
    bound += "; then the oldest goes" if topic.discard_old else ""
    return _row(
        f"`{topic.name}`",
        topic.record.__name__ if topic.record else "bytes",
        f"`{topic.key}`",
        _RETENTION[topic.retention],
        bound,
        ", ".join(topic.publishers),
        ", ".join(topic.consumers),
    )


def _headers() -> str:
    source = inspect.getsource(importlib.import_module("messages.headers"))
    found = re.findall(r'^[A-Z_]+ = "([^"]+)"\n(?:"""(.*?)""")?', source, re.MULTILINE | re.DOTALL)
    return _table(("header", "meaning")) + "".join(
        _row(f"`{name}`", _HEADER_MEANINGS.get(name) or " ".join(meaning.replace("``", "`").split()))
        for name, meaning in found
    )


_HEADER_MEANINGS = {
    "Nats-Msg-Id": "what makes a repeat harmless: the same id within the topic's window is stored once",
    "Busrl-Schema": "name and major version of the records, such as `rollout/1`",
    "traceparent": "W3C trace context",
    "tracestate": "W3C trace context",
}


def _fields(model: type[BaseModel]) -> str:
    return _table(("field", "type", "default", "meaning")) + "".join(
        _row(f"`{name}`", _type(field.annotation, field), _default(field), field.description or "")
        for name, field in model.model_fields.items()
    )


def _values_inside(found: Any) -> list[type[BaseModel]]:
    seen: dict[str, type[BaseModel]] = {}
    waiting = list(found)
    while waiting:
        for field in waiting.pop().model_fields.values():
            for inner in _models_in(field.annotation):
                if not issubclass(inner, Record) and inner.__name__ not in seen:
                    seen[inner.__name__] = inner
                    waiting.append(inner)
    return [seen[name] for name in sorted(seen)]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _type(annotation: Any, field: FieldInfo | None = None) -> str:
    for name, known in (("Int32Array", "int32 array"), ("Float32Array", "float32 array"), ("MaskArray", "0/1 array")):
        if field is not None and _is_array(field, name):
            return known
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_type(argument) for argument in arguments if argument is not NoneType) + " or none"
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"map of text to {_type(arguments[1])}"
    if hasattr(annotation, "__metadata__"):
        return _type(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, str) and annotation is not str:
        return ", ".join(f"`{value.value}`" for value in annotation)  # type: ignore[attr-defined]
    names = {int: "integer", float: "number", str: "text", bool: "true or false", bytes: "bytes", Any: "anything"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _is_array(field: FieldInfo, name: str) -> bool:
    return any(metadata in getattr(messages, name).__metadata__ for metadata in field.metadata)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "none" if value is None else _code(repr(getattr(value, "value", value)))


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        if getattr(inner, "hidden", False):
            continue
        if hasattr(inner, "commands"):
            yield from _commands(f"{path} {name}", inner)
        else:
            yield f"{path} {name}", inner


def _parameters(command: Any) -> Iterator[str]:
    shown = [
        p for p in command.params if not getattr(p, "hidden", False) and getattr(p, "name", "") not in ("help", None)
    ]
    arguments = [p for p in shown if p.param_type_name == "argument"]
    options = [p for p in shown if p.param_type_name != "argument"]
    for title, found in (("argument", arguments), ("option", options)):
        if found:
            yield _table((title, "default", "meaning")) + "".join(_parameter(parameter) for parameter in found)


def _parameter(parameter: Any) -> str:
    metavar = parameter.metavar or ""
    if parameter.param_type_name == "argument":
        names = [metavar or parameter.name.upper()]
    else:
        names = [f"{name} {metavar}".strip() for name in (*parameter.opts, *parameter.secondary_opts)]
    default = "required" if parameter.required else _parameter_default(parameter)
    return _row(", ".join(f"`{name}`" for name in names), default, _plain(getattr(parameter, "help", None) or ""))


def _parameter_default(parameter: Any) -> str:
    default = parameter.default
    if default is None or default == [] or callable(default) or "Sentinel" in repr(type(default)):
        return ""
    if isinstance(default, bool):
        return "yes" if default else "no"
    return _code(str(getattr(default, "value", default)))


# --- Markdown ---------------------------------------------------------------------------------------------------------


def _page(parts: Sequence[str]) -> str:
    head, *rest = parts
    return "\n\n".join([head, _MADE, *(part.rstrip() for part in rest if part.strip())]) + "\n"


def _table(titles: Sequence[str]) -> str:
    return "| " + " | ".join(titles) + " |\n" + "|" + "---|" * len(titles) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |\n"


def _code(text: str) -> str:
    return f"`{text}`" if text and text != "required" else text


def _first_line(model: type) -> str:
    text = " ".join((model.__doc__ or "").split("\n\n", maxsplit=1)[0].split())
    return text.replace("``", "`")


def _examples(epilog: str) -> str:
    """The indented lines of a command's epilog, as a block of code; the exit codes stand at the top of the page."""
    lines = [line.strip() for line in epilog.splitlines() if line.startswith("  ")]
    return "\n".join(["```sh", *lines, "```"]) if lines else ""


def _plain(text: str) -> str:
    """Help text as Markdown: without the terminal's colours, examples as code."""
    text = re.sub(
        r"\[/?(?:bold|dim|italic|cyan|green|yellow|red|blue|magenta|code)[^\]]*\]", "", inspect.cleandoc(text)
    )
    return text.replace("\b\n", "").replace("\x08", "").strip()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or check them; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given not in ([], ["--check"]):
        sys.stderr.write(f"error: unknown arguments {given}, expected none or --check\n")
        return 2
    if given:
        found = stale()
        sys.stdout.write("".join(f"stale: {name} (run python -m ops.reference)\n" for name in found))
        return 1 if found else 0
    sys.stdout.write("".join(f"written: {name}\n" for name in write()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
