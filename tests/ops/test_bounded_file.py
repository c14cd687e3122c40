"""A bounded file keeps the newest lines whole and never grows past its bound."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.bounded_file import BoundedFile


def content(file: BoundedFile) -> bytes:
    older = file.previous.read_bytes() if file.previous.exists() else b""
    return older + file.path.read_bytes()


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60))
def test_the_bound_holds_and_the_newest_lines_are_there_in_order(tmp_path_factory, lengths):
    path = tmp_path_factory.mktemp("bounded") / "x.jsonl"
    with BoundedFile(path, max_bytes=200) as file:
        written = [b"%d:" % i + b"x" * length for i, length in enumerate(lengths)]
        for line in written:
            file.append(line)
    kept = content(file).splitlines()
    assert len(content(file)) <= 200
    assert kept == written[len(written) - len(kept) :]
    assert sum(map(len, kept)) >= min(sum(map(len, written)), 60)


def test_a_torn_last_line_of_a_killed_process_spoils_no_other(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n{"b":')
    with BoundedFile(path, max_bytes=1000) as file:
        file.append(b'{"c":3}')
    assert path.read_bytes().splitlines() == [b'{"a":1}', b'{"b":', b'{"c":3}']


def test_a_line_longer_than_the_bound_is_still_one_line(tmp_path: Path):
    with BoundedFile(tmp_path / "x", max_bytes=10) as file:
        file.append(b"a" * 50)
        file.append(b"b")
    assert content(file).splitlines() == [b"a" * 50, b"b"]


def test_a_restart_goes_on_where_the_file_ended(tmp_path: Path):
    for line in (b"one", b"two"):
        with BoundedFile(tmp_path / "x", max_bytes=100) as file:
            file.append(line)
    assert (tmp_path / "x").read_bytes() == b"one\ntwo\n"


def test_a_bound_that_holds_nothing_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="at least 2"):
        BoundedFile(tmp_path / "x", max_bytes=1)
