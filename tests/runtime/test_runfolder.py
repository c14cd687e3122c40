"""The run folder on a disk that does not play along."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.errors import UserError
from runtime.runfolder import RunFolder


def test_a_folder_that_can_not_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder of runs should be")
    with pytest.raises(UserError, match=r"runs/r can not be written: .*; make room there, or set run.dir"):
        RunFolder(tmp_path / "runs" / "r").create()


def test_making_it_twice_is_harmless_and_leaves_nothing_beside_its_parts(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r")
    folder.create()
    folder.create()
    parts = {"checkpoints", "history", "logs", "telemetry", "weights"}
    assert {path.name for path in folder.path.iterdir()} == parts
