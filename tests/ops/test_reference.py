"""The committed reference pages are what the code says."""

from __future__ import annotations

import pytest

from messages import TOPICS
from messages.record import SCHEMAS
from ops import reference
from ops.metrics import INSTRUMENTS


@pytest.mark.parametrize("name", list(reference.pages()))
def test_the_committed_page_is_up_to_date(name):
    committed = (reference.FOLDER / name).read_text(encoding="utf-8")
    assert committed == reference.pages()[name](), f"{name} is stale: run `python -m ops.reference`"


def test_every_topic_record_and_metric_has_its_place():
    topics, records, metrics = reference.topics(), reference.records(), reference.metrics()
    assert all(f"| `{topic.name}` |" in topics for topic in TOPICS)
    assert all(f"## {record.__name__}\n" in records for record in SCHEMAS.values())
    assert all(f"| `{row.name}` |" in metrics for row in INSTRUMENTS)


def test_arrays_of_a_record_are_named_by_what_they_hold():
    assert "| `token_ids` | int32 array |" in reference.records()
    assert "| `logprobs` | float32 array |" in reference.records()
    assert "| `loss_mask` | 0/1 array |" in reference.records()


def test_every_command_is_documented_with_its_examples_and_exit_codes():
    page = reference.cli()
    for command in ("up", "publish", "status", "top", "tail", "dead list", "dead replay", "export", "eval", "sft"):
        section = page.split(f"## busrl {command}\n")[1].split("\n## ")[0]
        assert "busrl " in section
        assert "Exit codes" in page


def test_writing_again_changes_nothing(tmp_path):
    assert reference.write(tmp_path) == list(reference.pages())
    assert reference.write(tmp_path) == []
    (tmp_path / "topics.md").write_text("stale")
    assert reference.stale(tmp_path) == ["topics.md"]


def test_an_unknown_argument_is_bad_input(capsys):
    assert reference.main(["--chek"]) == 2
    assert "expected none or --check" in capsys.readouterr().err
