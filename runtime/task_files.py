"""Files of tasks, read line by line: a good line is a task, a bad one is a place and a reason, and memory stays flat.

Two kinds of lines are understood. busrl's own has the fields of :class:`messages.Task`. The other is what datasets
look like: a prompt column (``prompt``, ``question`` or ``problem``; text or chat messages) and an answer column
(``answer``, ``solution`` or ``final_answer``); its other columns become the task's metadata. An id that is missing is
derived from the content, so that reading a file twice gives the same tasks.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from messages import InvalidName, Task, VerifierSpec, check_name, derive, encode
from messages.codec import first_error
from messages.task import Split
from runtime.errors import UserError

PROMPT_COLUMNS = ("prompt", "question", "problem")
ANSWER_COLUMNS = ("answer", "solution", "final_answer")
TASK_FIELDS = frozenset(Task.model_fields)
MAX_TASK_BYTES = 4 << 20
"""Bound of one task as it is stored, and of one line."""
MAX_LINE_BYTES = 4 * MAX_TASK_BYTES
_PARQUET_ROWS = 256


@dataclass(frozen=True)
class TaskLine:
    """A task and where it was read: ``FILE:LINE``."""

    where: str
    task: Task


@dataclass(frozen=True)
class BadLine:
    """Why the line at ``where`` is no task."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(frozen=True)
class TaskDefaults:
    """What a line that does not say so itself gets.

    Attributes:
        domain: for lines without one.
        verifier: for lines without one, of any domain.
        verifiers: by domain; ``verifier`` is for the domains that are not in here.
        split: for lines without one.
        domains: the domains that there are (of the run); None for any.
        trust_code: whether a task may name a Python function as its verifier.
    """

    domain: str | None = None
    verifier: VerifierSpec | None = None
    verifiers: Mapping[str, VerifierSpec] = field(default_factory=dict)
    split: Split = "train"
    domains: frozenset[str] | None = None
    trust_code: bool = True


class _Bad(Exception):
    """This line is no task."""


def check_file(path: Path) -> None:
    """Refuse what can not be a file of tasks, without reading it.

    Raises:
        UserError: there is no such file, or it is of another kind.
    """
    if not path.exists():
        raise UserError(f"{path}: there is no such file")
    if not path.is_file():
        raise UserError(f"{path}: is not a file; give a .jsonl or .parquet file")
    if path.suffix.lower() not in _READERS:
        raise UserError(f"{path}: is of an unknown kind; give .jsonl (one JSON object a line) or .parquet")


def read_tasks(path: Path, defaults: TaskDefaults) -> Iterator[TaskLine | BadLine]:
    """Read a file of tasks, ``.jsonl`` (or ``.ndjson``) or ``.parquet``, lazily.

    Raises:
        UserError: see :func:`check_file`; or it is damaged as a whole.
    """
    check_file(path)
    for where, row in _READERS[path.suffix.lower()](path):
        try:
            if isinstance(row, _Bad):
                raise row
            yield TaskLine(where, to_task(row, defaults))
        except _Bad as bad:
            yield BadLine(where, str(bad))


def source_tasks(tasks: Iterable[Task], source: str, defaults: TaskDefaults) -> Iterator[TaskLine | BadLine]:
    """Tasks that were made and not read, held to the same rules; their places are ``SOURCE:1``, ``SOURCE:2``, ..."""
    for number, task in enumerate(tasks, 1):
        where = f"{source}:{number}"
        try:
            _domain(task.domain, defaults.domains)
            _check_verifier(task, defaults)
        except _Bad as bad:
            yield BadLine(where, str(bad))
        else:
            yield TaskLine(where, task)


def count_rows(path: Path) -> int | None:
    """About how many lines or rows a file has, to show progress against; None when it can not be told."""
    if path.suffix.lower() == ".parquet":
        parquet = importlib.util.find_spec("pyarrow") and importlib.import_module("pyarrow.parquet")
        try:
            return int(parquet.read_metadata(path).num_rows) if parquet else None
        except (OSError, ValueError):
            return None
    try:
        with path.open("rb") as stream:
            return sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))
    except OSError:
        return None


# --- rows -------------------------------------------------------------------------------------------------------------


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            where = f"{path}:{number}"
            if len(line) > MAX_LINE_BYTES:
                _skip_line(stream, line)
                yield where, _Bad(f"a line of more than {MAX_LINE_BYTES >> 20} MiB is not read")
            elif line.strip():
                yield where, _json(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)


def _skip_line(stream: BinaryIO, line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = stream.readline(1 << 20)


def _json(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return _Bad(f"is not UTF-8: {error.reason} at byte {error.start}")
    except json.JSONDecodeError as error:
        return _Bad(f"is not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, a thousand brackets
        return _Bad(f"is not readable JSON: {error}")


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as missing:
        raise UserError(f"{path}: Parquet files need pyarrow: pip install 'busrl[parquet]'") from missing
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}:{number}", _without_nulls(row)
    except (OSError, ValueError) as error:  # pyarrow's errors are of these classes
        raise UserError(f"{path}: is not a readable Parquet file (row {number + 1}): {error}") from error


def _without_nulls(value: Any) -> Any:
    """A column is there for every row, a field is not: null says that it is missing."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


_READERS: Mapping[str, Callable[[Path], Iterator[tuple[str, Any]]]] = {
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
    ".parquet": _parquet_rows,
}


# --- a row to a task --------------------------------------------------------------------------------------------------


def to_task(row: Any, defaults: TaskDefaults) -> Task:
    """Make a task of one row; raises ``_Bad`` with the reason when it is none."""
    if not isinstance(row, Mapping):
        raise _Bad(f"is {_kind(row)}, expected an object with a prompt and an answer")
    fields = _own_fields(row) if "messages" in row else _dataset_fields(row)
    fields.setdefault("split", defaults.split)
    fields["domain"] = _domain(fields.get("domain", defaults.domain), defaults.domains)
    fields["verifier"] = _verifier(fields, defaults)
    if "id" not in fields:
        content = json.dumps([fields["messages"], fields.get("answer"), fields["verifier"]], default=str)
        fields["id"] = derive("task", fields["domain"], fields["split"], content)
    elif isinstance(fields["id"], int) and not isinstance(fields["id"], bool):
        fields["id"] = str(fields["id"])
    try:
        task = Task.model_validate(fields)
        size = len(encode([task]))
    except ValidationError as error:
        raise _Bad(first_error(error)) from error
    except (UnicodeEncodeError, OverflowError, TypeError, ValueError, RecursionError) as error:
        raise _Bad(f"can not travel: {error}") from error
    if size > MAX_TASK_BYTES:
        raise _Bad(f"a task of {size} bytes is too large, at most {MAX_TASK_BYTES}")
    _check_verifier(task, defaults)
    return task


def _own_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(row) - TASK_FIELDS)
    if unknown:
        raise _Bad(f"a task has no field {unknown[0]!r}; put what is your own under 'metadata'")
    return dict(row)


def _dataset_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    prompt_column = _first_column(row, PROMPT_COLUMNS)
    if prompt_column is None:
        raise _Bad(f"has no prompt: expected a field 'messages' or one of {', '.join(PROMPT_COLUMNS)}")
    answer_column = _first_column(row, ANSWER_COLUMNS)
    used = {prompt_column, answer_column}
    fields = {name: value for name, value in row.items() if name in TASK_FIELDS - {"metadata"} and name not in used}
    fields["messages"] = _chat(prompt_column, row[prompt_column])
    if answer_column is not None:
        fields["answer"] = _answer(answer_column, row[answer_column])
    own = row.get("metadata", {})
    if not isinstance(own, Mapping):
        raise _Bad(f"metadata: expected an object; found {_kind(own)}")
    others = {name: value for name, value in row.items() if name not in TASK_FIELDS and name not in used}
    fields["metadata"] = {**_plain(others), **own}
    return fields


def _first_column(row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if row.get(name) is not None), None)


def _chat(column: str, prompt: Any) -> list[Any]:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise _Bad(f"{column}: is empty")
        return [{"role": "user", "content": prompt}]
    if isinstance(prompt, list) and prompt:
        return prompt
    raise _Bad(f"{column}: expected text or a list of chat messages; found {_kind(prompt)}")


def _answer(column: str, answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        raise _Bad(f"{column}: expected text or a number; found {_kind(answer)}")
    return str(answer)


def _domain(domain: Any, known: frozenset[str] | None) -> str:
    if domain is None:
        raise _Bad("has no domain: add a field 'domain', or give --domain")
    if not isinstance(domain, str):
        raise _Bad(f"domain: expected text; found {_kind(domain)}")
    try:
        check_name(domain, "domain")
    except InvalidName as error:
        raise _Bad(str(error)) from error
    if known is not None and domain not in known:
        raise _Bad(f"the run has no domain {domain!r}: its domains are {', '.join(sorted(known))}")
    return domain


def _verifier(fields: Mapping[str, Any], defaults: TaskDefaults) -> Any:
    found = fields.get("verifier")
    if found is None:
        default = defaults.verifiers.get(fields["domain"], defaults.verifier)
        if default is None:
            raise _Bad(
                f'domain {fields["domain"]!r} has no verifier: add a field \'verifier\' such as {{"kind": "exact"}}, '
                "or give --verifier"
            )
        return default.model_dump()
    if isinstance(found, str):
        return {"kind": found}
    if isinstance(found, Mapping):
        unknown = sorted(map(str, set(found) - {"kind", "options"}))
        if unknown:
            raise _Bad(f"verifier: has no field {unknown[0]!r}; expected kind and options")
    return found


def _check_verifier(task: Task, defaults: TaskDefaults) -> None:
    verifiers = importlib.import_module("actors.verifiers")  # by name: this room knows no actor
    try:
        verifiers.validate(task)
    except UserError as error:
        raise _Bad(str(error).removeprefix(f"task {task.id}: ")) from error
    if task.verifier.kind == "python" and not defaults.trust_code:
        raise _Bad("verifier 'python' runs your function unsandboxed, and the run does not set trust_code = true")


def _plain(value: Any) -> Any:
    """Values of columns as JSON would have them; what it has no word for (dates, decimals, bytes) as text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
