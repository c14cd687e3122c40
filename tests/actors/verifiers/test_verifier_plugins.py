"""Every built-in plugin scores what it promises, and wrong options are one line that names the task and the key."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verifier_samples import python, task

from actors.verifiers import (
    VERIFIERS,
    BadVerifierOptions,
    Check,
    CodeNotTrusted,
    InvalidScore,
    MissingAnswer,
    UnknownVerifier,
    build,
    validate,
)
from messages import Task
from runtime.errors import UserError


def check(made: Task, response: str) -> Check:
    return build(made, trust_code=True).check(made, response)


@pytest.mark.parametrize(
    ("response", "options", "passes"),
    [
        (" 42\n", {}, True),
        ("42.", {}, False),
        ("YES", {}, False),
        ("so it is <a>42</a>", {"extract": "<a>(.*?)</a>"}, True),
        ("<a>42</a> or <a>43</a>", {"extract": "<a>(.*?)</a>"}, False),
        ("42", {"extract": "<a>(.*?)</a>"}, False),
        ("is it 7? no, 42", {"extract": r"\d+"}, True),
    ],
)
def test_exact_compares_the_stripped_or_extracted_text(response, options, passes):
    assert check(task("exact", **options), response).pass_rate == float(passes)


def test_exact_ignores_case_and_white_space_only_when_told():
    made = task("exact", "Blue  Sky", ignore_case=True, collapse_whitespace=True)
    assert check(made, "blue\nSKY ").pass_rate == 1.0
    assert check(task("exact", "Blue  Sky"), "Blue Sky").pass_rate == 0.0


@given(st.text())
def test_exact_finds_every_answer_equal_to_itself(answer):
    assert check(task("exact", answer), f"\n{answer} ").pass_rate == 1.0


@pytest.mark.parametrize(
    ("response", "options", "passes"),
    [
        ("abc 12", {"pattern": r"[a-z]+ \d+"}, True),
        ("abc 12!", {"pattern": r"[a-z]+ \d+"}, False),
        ("abc 12!", {"pattern": r"[a-z]+ \d+", "full": False}, True),
        ("ABC 12", {"pattern": r"[a-z]+ \d+", "ignore_case": True}, True),
    ],
)
def test_regex_matches_the_whole_response_unless_told_otherwise(response, options, passes):
    assert check(task("regex", None, **options), response).pass_rate == float(passes)


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("response", "pass_rate"),
    [('{"n": 1}', 1.0), ('{"n": "1"}', 0.0), ("{}", 0.0), ("n = 1", 0.0), ('{"n": NaN}', 0.0), ("[" * 100_000, 0.0)],
)
def test_json_schema_passes_only_documents_that_fit(response, pass_rate):
    assert check(task("json_schema", None, schema=SCHEMA), response).pass_rate == pass_rate


@pytest.mark.parametrize(
    ("response", "pass_rate", "correct"),
    [('{"n": 1}', 1.0, 1.0), ('{"n": 1.0}', 1.0, 1.0), ('{"n": 2}', 0.5, 0.0), ('{"n": true}', 0.0, 0.0)],
)
def test_json_schema_with_an_answer_scores_fit_and_equality(response, pass_rate, correct):
    found = check(task("json_schema", '{"n": 1}', schema=SCHEMA, equals_answer=True), response)
    assert (found.pass_rate, found.scores["correct"]) == (pass_rate, correct)


def test_json_schema_says_where_a_document_does_not_fit():
    assert "$.n" in check(task("json_schema", None, schema=SCHEMA), '{"n": "1"}').log


def test_reasoning_gym_scores_with_the_datasets_own_rule():
    entry = {"direction": "ascending", "sorted_numbers": ["1", "2", "10"], "original_numbers": ["10", "2", "1"]}
    made = task("reasoning_gym", "['1', '2', '10']", dataset="number_sorting", metadata=entry)
    assert check(made, "\n['1', '2', '10'] ").pass_rate == 1.0
    assert check(made, "['2', '1', '10']").pass_rate < 1.0


def test_reasoning_gym_scores_the_answers_of_our_own_source_as_right():
    from actors.domains.registry import open_source

    for made in open_source("reasoning-gym").tasks(24, 3, "train"):
        assert check(made, made.answer or "").pass_rate == 1.0, made.id


def test_a_python_function_may_return_a_number_a_truth_or_scores():
    assert check(python("half"), "x").pass_rate == 0.5
    assert check(python("yes"), "x").pass_rate == 1.0
    assert check(python("two_objectives"), "42").scores == {"correct": 1.0, "short": 1.0}


@pytest.mark.parametrize("name", ["nan", "two", "nothing", "without_correct"])
def test_what_is_no_score_between_0_and_1_is_an_error_and_not_a_reward(name):
    with pytest.raises(InvalidScore):
        check(python(name), "x")


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_check_holds_a_number_between_0_and_1_or_does_not_exist(value):
    if not math.isnan(value) and 0 <= value <= 1:
        assert Check.of(value).pass_rate == value
    else:
        with pytest.raises(InvalidScore):
            Check.of(value)


def test_a_python_function_is_refused_without_trust():
    with pytest.raises(CodeNotTrusted, match="trust_code"):
        build(python("half"))


@pytest.mark.parametrize(
    ("made", "error", "words"),
    [
        (task("exakt"), UnknownVerifier, ("exakt-task", "'exakt'", "exact")),
        (task("exact", ignorecase=True), BadVerifierOptions, ("exact-task", "'ignorecase'", "ignore_case")),
        (task("exact", ignore_case="maybe"), BadVerifierOptions, ("exact-task", "'ignore_case'", "maybe")),
        (task("exact", extract="("), BadVerifierOptions, ("exact-task", "'extract'", "regular expression")),
        (task("exact", None), MissingAnswer, ("exact-task", "answer")),
        (task("numeric", tolerance=-1), BadVerifierOptions, ("numeric-task", "'tolerance'", "-1")),
        (task("numeric", extraction="first"), BadVerifierOptions, ("numeric-task", "'extraction'", "last_number")),
        (task("regex", None), BadVerifierOptions, ("regex-task", "'pattern'", "needs the option")),
        (task("json_schema", None), BadVerifierOptions, ("json_schema-task", "'schema'", "needs the option")),
        (task("json_schema", None, schema={"type": "int"}), BadVerifierOptions, ("json_schema", "'schema'", "int")),
        (task("json_schema", None, schema={}, equals_answer=True), MissingAnswer, ("json_schema-task", "answer")),
        (task("reasoning_gym", dataset="no_such"), BadVerifierOptions, ("'dataset'", "no_such")),
        (python("no_such"), BadVerifierOptions, ("'function'", "no_such")),
        (python("asynchronous"), BadVerifierOptions, ("'function'", "async")),
        (task("python", function="os;system"), BadVerifierOptions, ("python-task", "'function'")),
    ],
)
def test_bad_options_are_one_line_that_names_the_task_and_the_key(made, error, words):
    with pytest.raises(error) as raised:
        build(made, trust_code=True)
    said = str(raised.value)
    assert isinstance(raised.value, UserError)
    assert "\n" not in said
    for word in words:
        assert word in said


def test_importing_the_registry_and_validating_imports_neither_torch_nor_a_checking_library():
    example = json.dumps(task("numeric", "1/2").model_dump(mode="json"))
    code = (
        "import json, sys; from actors.verifiers import VERIFIERS, validate; from messages import Task; "
        f"validate(Task.model_validate(json.loads({example!r}))); "
        "print([m for m in ('torch', 'sympy', 'math_verify', 'reasoning_gym', 'jsonschema') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_every_built_in_verifier_can_be_loaded_by_its_path():
    for kind in VERIFIERS:
        with pytest.raises(UserError, match=f"verifier '{kind}'"):
            validate(task(kind, no_such_option=1))
