"""Files of tasks: every good line is a task, every bad one is a place and a reason, and neither disturbs the other."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messages import ChatMessage, Task, VerifierSpec, encode
from runtime.errors import UserError
from runtime.task_files import MAX_LINE_BYTES, BadLine, TaskDefaults, TaskLine, count_rows, read_tasks, source_tasks

EXACT = VerifierSpec(kind="exact")
SUMS = TaskDefaults(domain="sums", verifier=EXACT)
OWN = {
    "id": "own-1",
    "domain": "sums",
    "messages": [{"role": "user", "content": "1+1="}],
    "verifier": {"kind": "exact"},
    "answer": "2",
}


def read(folder: Path, *lines: object, defaults: TaskDefaults = SUMS) -> list[TaskLine | BadLine]:
    file = folder / "tasks.jsonl"
    parts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    file.write_bytes(b"\n".join(parts) + b"\n")
    return list(read_tasks(file, defaults))


def task(folder: Path, line: object, defaults: TaskDefaults = SUMS) -> Task:
    (found,) = read(folder, line, defaults=defaults)
    assert isinstance(found, TaskLine), found
    return found.task


def reason(folder: Path, line: object, defaults: TaskDefaults = SUMS) -> str:
    (found,) = read(folder, line, defaults=defaults)
    assert isinstance(found, BadLine), found
    assert "\n" not in found.reason
    return found.reason


def test_a_line_with_the_fields_of_a_task_is_that_task(tmp_path):
    assert task(tmp_path, OWN, TaskDefaults()) == Task.model_validate(OWN)


@pytest.mark.parametrize("prompt", ["prompt", "question", "problem"])
@pytest.mark.parametrize("answer", ["answer", "solution", "final_answer"])
def test_a_dataset_line_becomes_a_task_whatever_its_columns_are_called(tmp_path, prompt, answer):
    found = task(tmp_path, {prompt: "1+1=", answer: 2, "source": "book"})
    assert found.messages == (ChatMessage(role="user", content="1+1="),)
    assert (found.answer, found.domain, found.verifier, found.split) == ("2", "sums", EXACT, "train")
    assert found.metadata == {"source": "book"}


def test_a_prompt_may_be_a_conversation(tmp_path):
    chat = [{"role": "system", "content": "be short"}, {"role": "user", "content": "1+1="}]
    assert [message.role for message in task(tmp_path, {"prompt": chat, "answer": "2"}).messages] == ["system", "user"]


def test_an_id_that_is_missing_depends_on_the_content_only(tmp_path):
    line = {"prompt": "1+1=", "answer": "2"}
    one, again = (task(tmp_path, line).id for _ in range(2))
    assert one == again
    assert one != task(tmp_path, {**line, "answer": "3"}).id
    assert one != task(tmp_path, line, TaskDefaults(domain="other", verifier=EXACT)).id


def test_the_lines_own_domain_verifier_and_split_win_over_the_defaults(tmp_path):
    line = {"prompt": "p", "answer": "a", "domain": "mine", "verifier": "numeric", "split": "eval", "id": 7}
    found = task(tmp_path, line)
    assert (found.domain, found.verifier.kind, found.split, found.id) == ("mine", "numeric", "eval", "7")


def test_a_domains_own_verifier_wins_over_the_common_one(tmp_path):
    defaults = TaskDefaults(domain="sums", verifier=EXACT, verifiers={"sums": VerifierSpec(kind="numeric")})
    assert task(tmp_path, {"prompt": "1+1=", "answer": "2"}, defaults).verifier.kind == "numeric"


GOOD = {"prompt": "p", "answer": "a"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{nope", "is not JSON"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"[" * 100_000, "is not"),
        (b'{"prompt": "p", "answer": ' + b"9" * 5000 + b"}", "digits"),
        (["a"], "is a list, expected an object"),
        ("text", "is text, expected an object"),
        ({}, "has no prompt"),
        ({"answer": "2"}, "has no prompt"),
        ({"prompt": " ", "answer": "2"}, "prompt: is empty"),
        ({"prompt": 3, "answer": "2"}, "prompt: expected text"),
        ({"prompt": [{"role": "robot", "content": "x"}], "answer": "2"}, "messages.0.role"),
        ({"prompt": "p", "answer": ["2"]}, "answer: expected text or a number; found a list"),
        ({"prompt": "p"}, "compares with the answer"),
        ({**GOOD, "domain": "Bad Name"}, "'Bad Name' is not a valid name"),
        ({**GOOD, "domain": 3}, "domain: expected text"),
        ({**GOOD, "verifier": {"kind": "exakt"}}, "no verifier 'exakt'"),
        ({**GOOD, "verifier": {"kind": "exact", "options": {"case": 1}}}, "no option 'case'"),
        ({**GOOD, "verifier": {"kind": "exact", "option": {}}}, "no field 'option'"),
        ({**GOOD, "verifier": 3}, "verifier"),
        ({**GOOD, "split": "test"}, "split"),
        ({**GOOD, "level": -1}, "level"),
        ({**GOOD, "max_tokens": 0}, "max_tokens"),
        ({**GOOD, "id": ""}, "id"),
        ({**GOOD, "metadata": 3}, "metadata"),
        ({**GOOD, "prompt": "\ud800"}, "can not travel"),
        ({**GOOD, "metadata": {"n": 1 << 70}}, "can not travel"),
        ({**GOOD, "prompt": "p" * (5 << 20)}, "too large"),
        ({**OWN, "lvel": 1}, "no field 'lvel'"),
        ({**OWN, "messages": []}, "messages"),
        ({**OWN, "answer": 2}, "answer"),
    ],
)
def test_a_bad_line_has_a_reason(tmp_path, line, words):
    assert words in reason(tmp_path, line)


def test_a_line_without_domain_or_verifier_says_what_to_give(tmp_path):
    assert "--domain" in reason(tmp_path, GOOD, TaskDefaults(verifier=EXACT))
    assert "--verifier" in reason(tmp_path, GOOD, TaskDefaults(domain="sums"))


def test_a_domain_that_the_run_has_not_is_refused(tmp_path):
    said = reason(tmp_path, GOOD, TaskDefaults(domain="sums", verifier=EXACT, domains=frozenset({"logic"})))
    assert "no domain 'sums'" in said
    assert "logic" in said


def test_a_python_verifier_is_refused_where_the_run_does_not_trust_code(tmp_path):
    line = {**GOOD, "verifier": {"kind": "python", "options": {"function": "mine:score"}}}
    assert task(tmp_path, line).verifier.kind == "python"
    assert "trust_code" in reason(tmp_path, line, TaskDefaults(domain="sums", trust_code=False))


def test_bad_lines_are_named_by_file_and_number_and_the_good_ones_go_through(tmp_path):
    found = read(tmp_path, b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), b"", b"{nope", GOOD, b"  \r", {"x": 1}, OWN)
    wheres = [(line.where.rsplit(":", 1)[1], isinstance(line, TaskLine)) for line in found]
    assert wheres == [("1", True), ("3", False), ("4", True), ("6", False), ("7", True)]
    assert str(found[1]).startswith(f"{tmp_path / 'tasks.jsonl'}:3: is not JSON")


def test_a_line_longer_than_any_task_is_skipped_whole(tmp_path):
    found = read(tmp_path, b'"' + b"x" * (2 * MAX_LINE_BYTES) + b'"', GOOD)
    assert isinstance(found[0], BadLine)
    assert "MiB" in found[0].reason
    assert isinstance(found[1], TaskLine)
    assert found[1].where.endswith(":2")


@given(st.binary(max_size=200).filter(lambda data: b"\n" not in data))
def test_any_bytes_at_all_are_a_task_or_a_bad_line(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / "any.jsonl"
    file.write_bytes(data)
    for line in read_tasks(file, SUMS):
        assert isinstance(line, TaskLine | BadLine)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
columns = st.sampled_from(
    ["prompt", "answer", "messages", "id", "domain", "verifier", "level", "split", "metadata", "x"]
)


@given(st.dictionaries(columns, json_values, max_size=6))
def test_any_object_at_all_is_a_task_that_can_travel_or_a_bad_line(tmp_path_factory, row):
    (found,) = read(tmp_path_factory.getbasetemp(), row)
    if isinstance(found, TaskLine):
        assert encode([found.task])


def test_reading_a_long_file_takes_no_memory(tmp_path):
    file = tmp_path / "many.jsonl"
    with file.open("w") as stream:
        stream.writelines(f'{{"prompt": "{n}+1=", "answer": "{n + 1}"}}\n' for n in range(10_000))
    lines = read_tasks(file, SUMS)
    next(lines)
    tracemalloc.start()
    for _ in lines:
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 500_000


@pytest.mark.parametrize(
    ("name", "words"), [("absent.jsonl", "no such file"), (".", "not a file"), ("tasks.csv", "unknown kind")]
)
def test_what_is_no_file_of_tasks_is_one_line(tmp_path, name, words):
    (tmp_path / "tasks.csv").touch()
    with pytest.raises(UserError, match=words):
        list(read_tasks(tmp_path / name, SUMS))


def test_parquet_rows_are_read_like_lines(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "tasks.parquet"
    rows = [
        {"prompt": "1+1=", "answer": "2", "verifier": {"kind": "exact", "options": {"ignore_case": True}}, "n": 1},
        {"prompt": None, "answer": "2", "verifier": None, "n": None},
        {"prompt": "2+2=", "answer": "4", "verifier": {"kind": "exact", "options": {"ignore_case": None}}, "n": 3},
    ]
    parquet.write_table(pa.Table.from_pylist(rows), file)
    first, second, third = read_tasks(file, SUMS)
    assert isinstance(first, TaskLine)
    assert isinstance(third, TaskLine)
    assert (first.task.verifier.options, first.task.metadata) == ({"ignore_case": True}, {"n": 1})
    assert (third.task.verifier.options, third.where) == ({}, f"{file}:3")
    assert second == BadLine(
        f"{file}:2", "has no prompt: expected a field 'messages' or one of prompt, question, problem"
    )
    assert count_rows(file) == 3


def test_values_that_json_has_no_word_for_are_text_in_the_metadata(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    import datetime

    file = tmp_path / "tasks.parquet"
    parquet.write_table(pa.Table.from_pylist([{**GOOD, "day": datetime.date(2026, 1, 2)}]), file)
    (found,) = read_tasks(file, SUMS)
    assert isinstance(found, TaskLine)
    assert found.task.metadata == {"day": "2026-01-02"}


def test_a_damaged_parquet_file_is_one_line(tmp_path):
    pytest.importorskip("pyarrow")
    file = tmp_path / "tasks.parquet"
    file.write_bytes(b"PAR1 not really PAR1")
    with pytest.raises(UserError, match="not a readable Parquet file"):
        list(read_tasks(file, SUMS))


def test_without_pyarrow_a_parquet_file_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    file = tmp_path / "tasks.parquet"
    file.touch()
    with pytest.raises(UserError, match=r"busrl\[parquet\]"):
        list(read_tasks(file, SUMS))


def test_tasks_of_a_source_are_held_to_the_runs_domains():
    made = [Task.model_validate({**OWN, "domain": domain}) for domain in ("sums", "logic")]
    first, second = source_tasks(made, "mine", TaskDefaults(domains=frozenset({"sums"})))
    assert isinstance(first, TaskLine)
    assert str(second) == "mine:2: the run has no domain 'logic': its domains are sums"
