"""Logs: one JSON object per line, each with its run, actor, instance and trace; never a secret.

On a terminal the same events are shown in colour. Lines of libraries (``logging``) take the same way; the telemetry's
own exporters are silenced, since a log line about a failed export would be exported too.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, TextIO

import structlog
from opentelemetry.trace import get_current_span

MASK = "[secret]"
MAX_TEXT = 8192
"""Characters of one value that a line keeps."""

_SECRET_KEY = re.compile(
    r"(^|_|-|\.)(password|passwd|passphrase|secret|secrets|token|api_?key|credential|credentials|authorization|private_?key"
    r"|nkey|jwt)($|_|-|\.)",
    re.IGNORECASE,
)
_NOT_SECRET = re.compile(r"(^|_)(token_(ids?|type)|eos_token|pad_token|bos_token|max_token|time_to_first_token)($|_)")
_URL_USERINFO = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^/\s@]+@", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?P<key>\b(?:password|passwd|secret|api[_-]?key|access[_-]?token|auth[_-]?token|nkey|jwt)\b[\"']?\s*[:=]\s*)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;}\"']+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<scheme>\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)

QUIET_LOGGERS = ("opentelemetry", "urllib3", "requests")
"""Loggers of the exporters and of what they stand on: what they lose is counted by the telemetry itself."""

EventDict = MutableMapping[str, Any]


def mask_text(text: str) -> str:
    """Text without the passwords of URLs, of assignments such as ``password=...`` and of authorization headers."""
    text = _URL_USERINFO.sub(rf"\g<scheme>{MASK}@", text)
    text = _BEARER.sub(rf"\g<scheme>{MASK}", text)
    return _ASSIGNED.sub(rf"\g<key>{MASK}", text)


def masked(value: Any, depth: int = 4) -> Any:
    """A value without secrets: text is searched, mappings lose what stands under a secret's name."""
    if isinstance(value, str):
        found = mask_text(value) if len(value) > 5 else value
        return found if len(found) <= MAX_TEXT else f"{found[:MAX_TEXT]}... ({len(found)} characters)"
    if depth and isinstance(value, Mapping):
        return {key: MASK if is_secret(str(key)) and item else masked(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [masked(item, depth - 1) for item in value]
    if isinstance(value, int | float | bool | None):
        return value
    return mask_text(str(value))


def is_secret(key: str) -> bool:
    """Whether a value under this name is to be hidden; ``tokens`` and ``token_ids`` are figures, not secrets."""
    return _SECRET_KEY.search(key) is not None and _NOT_SECRET.search(key) is None


def _without_secrets(_logger: Any, _method: str, event: EventDict) -> EventDict:
    safe = {key: event[key] for key in ("time", "level", "event") if key in event}
    for key, value in event.items():
        safe[key] = MASK if is_secret(key) and isinstance(value, str) and value else masked(value)
    return safe


def _with_trace(_logger: Any, _method: str, event: EventDict) -> EventDict:
    context = get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event


def _from_record(_logger: Any, _method: str, event: EventDict) -> EventDict:
    record = event.get("_record")
    if isinstance(record, logging.LogRecord):
        event["logger"] = record.name
    return event


def _masked_traceback(stream: TextIO, error: structlog.typing.ExcInfo) -> None:
    """No local variables: they are where the secrets are."""
    stream.write("\n" + mask_text("".join(traceback.format_exception(*error))))


class _Identity:
    """Adds who speaks; what the event says itself stands."""

    def __init__(self, run: str, actor: str, instance: str) -> None:
        self._fields = {"run": run, "actor": actor, "instance": instance}

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        for key, value in self._fields.items():
            if value:
                event.setdefault(key, value)
        return event


def setup(
    *,
    run: str = "",
    actor: str = "",
    instance: str = "",
    file: Path | None = None,
    stream: TextIO | None = None,
    level: str = "info",
    console: bool | None = None,
) -> None:
    """Set structlog and ``logging`` up for this process.

    Args:
        run: name of the run.
        actor: kind of actor.
        instance: which one of its kind.
        file: where JSON lines are appended; None for none.
        stream: where lines are shown; standard error when neither it nor a file is given.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        console: render the stream in colour instead of as JSON; None asks whether it is a terminal.

    Raises:
        ValueError: an unknown level.
        OSError: the file can not be opened.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level {level!r} is unknown, expected debug, info, warning or error")
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        _from_record,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        _Identity(run, actor, instance),
        _with_trace,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    for handler in _handlers(file, stream, console, shared):
        root.addHandler(handler)
    root.setLevel(number)
    for name in QUIET_LOGGERS:
        quiet = logging.getLogger(name)
        quiet.setLevel(logging.CRITICAL + 1)
        quiet.propagate = False


def _handlers(
    file: Path | None, stream: TextIO | None, console: bool | None, shared: list[structlog.typing.Processor]
) -> Iterator[logging.Handler]:
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler: logging.Handler = logging.FileHandler(file, encoding="utf-8")
        handler.setFormatter(_formatter(False, shared))
        yield handler
    if stream is None and file is None:
        stream = sys.stderr
    if stream is not None:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(_formatter(stream.isatty() if console is None else console, shared))
        yield handler


def _formatter(colour: bool, shared: list[structlog.typing.Processor]) -> structlog.stdlib.ProcessorFormatter:
    last: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if colour:
        renderer = structlog.dev.ConsoleRenderer(
            timestamp_key="time", pad_event_to=24, exception_formatter=_masked_traceback
        )
        last += [_without_secrets, renderer]
    else:
        last += [structlog.processors.format_exc_info, _without_secrets, structlog.processors.JSONRenderer(default=str)]
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last)
