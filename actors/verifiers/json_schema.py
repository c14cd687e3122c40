"""JSON schema: the response is one JSON document that fits a schema, and equals the answer where that is asked for."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from pydantic import Field

from actors.verifiers.check import CORRECT, Check
from actors.verifiers.errors import BadReference, BadVerifierOptions, MissingPackage
from actors.verifiers.plugin import Verifier, VerifierOptions
from messages import Task


class JsonSchemaOptions(VerifierOptions):
    """The schema, and whether the values count too."""

    schema_: dict[str, Any] | bool = Field(alias="schema", description="JSON schema (draft 2020-12 if it names none)")
    equals_answer: bool = Field(default=False, description="the document must also equal the task's answer, as JSON")


class JsonSchema(Verifier[JsonSchemaOptions]):
    """Validates JSON. Its objective is ``correct``; with ``equals_answer`` also ``schema`` and ``equal``."""

    Options: ClassVar[type[JsonSchemaOptions]] = JsonSchemaOptions

    @classmethod
    def needs_answer(cls, options: JsonSchemaOptions) -> bool:
        """Only equality needs one."""
        return options.equals_answer

    def __init__(self, options: JsonSchemaOptions) -> None:
        """Compile the schema.

        Raises:
            MissingPackage: jsonschema is not installed.
            BadVerifierOptions: the schema is not one.
        """
        super().__init__(options)
        try:
            from jsonschema import SchemaError
            from jsonschema.validators import Draft202012Validator, validator_for
        except ImportError as missing:
            raise MissingPackage("verifier 'json_schema' needs jsonschema: pip install 'busrl[domains]'") from missing
        kind = validator_for(options.schema_, default=Draft202012Validator)
        try:
            kind.check_schema(options.schema_)
        except SchemaError as error:
            raise BadVerifierOptions(f"verifier 'json_schema', option 'schema': {error.message}") from error
        self._validator = kind(options.schema_)

    def check(self, task: Task, response: str) -> Check:
        """``pass_rate`` is the share of what was asked for (the schema, the equality) that holds."""
        try:
            document = _parse(response)
            problem = next(iter(self._validator.iter_errors(document)), None)
        except ValueError as error:
            return self._scored(fits=False, equal=False, log=f"not JSON: {error}")
        except RecursionError:
            return self._scored(fits=False, equal=False, log="nested too deeply to be read")
        log = "" if problem is None else f"{problem.json_path}: {problem.message}"
        equal = self.options.equals_answer and _same(document, self._answer(task))
        return self._scored(fits=problem is None, equal=equal, log=log)

    def _scored(self, *, fits: bool, equal: bool, log: str) -> Check:
        if not self.options.equals_answer:
            return Check.of(float(fits), log)
        scores = {CORRECT: float(fits and equal), "schema": float(fits), "equal": float(equal)}
        return Check((fits + equal) / 2, scores, log)

    def _answer(self, task: Task) -> Any:
        try:
            return _parse(task.answer or "")
        except ValueError as error:
            raise BadReference(f"task {task.id}: its answer is not JSON: {error}") from error


def _parse(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def _same(one: Any, other: Any) -> bool:
    """Equality as JSON has it: true is not 1, 1 is 1.0, the order of an object's keys does not count."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
