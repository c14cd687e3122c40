"""The hand-written pages point at what exists: files, commands, keys of the run file, metrics, reasons."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from messages import DropReason
from ops.metrics import INSTRUMENTS
from ops.reference import cli
from runtime.reference import describe

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")], key=lambda path: str(path)
)
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
SECTIONS = {row.section.split(".")[0] for row in describe()}
KEYS = {f"{row.section}.{row.key}" for row in describe()}


@pytest.mark.parametrize("page", TEXTS)
def test_every_link_inside_the_repository_leads_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXTS[page])
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (ROOT / page).parent.joinpath(target).exists()] == []


@pytest.mark.parametrize("page", TEXTS)
def test_every_command_that_is_named_exists(page):
    known = set(re.findall(r"^## busrl ([a-z ]+)$", cli(), re.MULTILINE))
    groups = {name.split()[0] for name in known}
    named = set(re.findall(r"(?:`|^    |^\$ )busrl ([a-z]+)", TEXTS[page], re.MULTILINE))
    assert named - groups == set()


@pytest.mark.parametrize("page", TEXTS)
def test_every_key_of_the_run_file_that_is_named_exists(page):
    named = set(re.findall(r"`([a-z]+\.[a-z_]+(?:\.[a-z_]+)*)(?:`| = )", TEXTS[page]))
    keys = {name for name in named if name.split(".")[0] in SECTIONS and not name.endswith((".md", ".py", ".toml"))}
    spans = {"learner.step"}
    assert keys - KEYS - spans == set()


@pytest.mark.parametrize("page", TEXTS)
def test_every_metric_that_is_named_exists(page):
    attributes = {"rl.task.id", "rl.group.id", "rl.objective", "rl.telemetry.spans.lost"}
    named = set(re.findall(r"`(rl\.[a-z_.]+)`", TEXTS[page]))
    assert named - attributes - {row.name for row in INSTRUMENTS} == set()


def test_the_guide_explains_every_reason_for_a_drop():
    assert [reason for reason in DropReason if f"| `{reason.value}` |" not in TEXTS["docs/guide.md"]] == []
