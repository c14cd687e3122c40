"""The tasks that a run file names are on the bus before the first actor starts, once, under their domain's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from messages import Task
from messages.topics import TASKS
from runtime.errors import ConfigError
from runtime.follow import follow
from runtime.runfile import run_class
from runtime.seeding import domain_tasks, publish_domains
from tests.conftest import LiveBus


def config(seed: int = 0, **domains):
    tables = {"run": {"name": "test", "seed": seed}, "policy": {"path": "/p"}, "domains": domains}
    return run_class().model_validate(tables)


def source(n_train: int = 6, n_eval: int = 4, **options):
    return {"source": {"name": "arithmetic", "n_train": n_train, "n_eval": n_eval, "options": options}}


def prompts(tables, domain: str, split: str) -> list[str]:
    lines = domain_tasks(tables, domain, tables.domains[domain])
    return [line.task.messages[0].content for line in lines if line.task.split == split]


async def stored(bus) -> list[Task]:
    return [item.record async for item in follow(bus, TASKS, "all", (), until_caught_up=True)]


def ignore(_text: str) -> None:
    return


async def test_a_source_gives_training_and_held_out_tasks(live: LiveBus):
    bus = await live.connect("user")
    assert await publish_domains(bus, config(sums=source()), ignore, ignore) == 10
    found = await stored(bus)
    assert [(task.split, task.domain) for task in found].count(("train", "sums")) == 6
    assert [(task.split, task.domain) for task in found].count(("eval", "sums")) == 4


async def test_publishing_again_changes_nothing(live: LiveBus):
    bus = await live.connect("user")
    tables = config(sums=source())
    await publish_domains(bus, tables, ignore, ignore)
    assert await publish_domains(bus, tables, ignore, ignore) == 0
    assert len(await stored(bus)) == 10


async def test_what_is_published_and_unchanged_is_not_made_again(live: LiveBus, tmp_path: Path):
    bus = await live.connect("user")
    said: list[str] = []
    marker = tmp_path / "published"
    await publish_domains(bus, config(sums=source()), said.append, ignore, marker)
    said.clear()
    await publish_domains(bus, config(sums=source()), said.append, ignore, marker)
    assert said == []
    assert await publish_domains(bus, config(sums=source(n_train=8)), said.append, ignore, marker) == 2


def test_held_out_tasks_are_the_same_for_every_seed_and_training_tasks_are_not():
    first, second = config(seed=1, sums=source(20, 20)), config(seed=2, sums=source(20, 20))
    assert prompts(first, "sums", "eval") == prompts(second, "sums", "eval")
    assert prompts(first, "sums", "train") != prompts(second, "sums", "train")


def test_a_level_is_an_option_of_the_tasks_and_not_of_the_source():
    hard = config(sums=source(level=1))
    assert {line.task.level for line in domain_tasks(hard, "sums", hard.domains["sums"])} == {1}


async def test_an_unknown_source_is_named_with_its_domain(live: LiveBus):
    bus = await live.connect("user")
    with pytest.raises(ConfigError, match=r"domains\.sums\.source: there is no task source 'nothing'"):
        await publish_domains(bus, config(sums={"source": {"name": "nothing"}}), ignore, ignore)


async def test_bad_lines_are_warned_of_and_the_good_ones_published(live: LiveBus, tmp_path: Path):
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps({"prompt": "1+1=", "answer": "2"}) + "\nno json\n")
    warned: list[str] = []
    mine = {"files": (str(file),), "verifier": {"kind": "exact"}}
    assert await publish_domains(await live.connect("user"), config(mine=mine), ignore, warned.append) == 1
    assert len(warned) == 1
    assert f"{file}:2" in warned[0]


async def test_a_file_without_one_task_stops_the_run(live: LiveBus, tmp_path: Path):
    file = tmp_path / "train.jsonl"
    file.write_text("no json\n")
    mine = {"files": (str(file),), "verifier": {"kind": "exact"}}
    with pytest.raises(ConfigError, match=r"domains\.mine: not one of its 1 lines is a task; .*train\.jsonl:1"):
        await publish_domains(await live.connect("user"), config(mine=mine), ignore, ignore)


async def test_lines_without_any_verifier_are_refused(live: LiveBus, tmp_path: Path):
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n")
    with pytest.raises(ConfigError, match="verifier"):
        await publish_domains(await live.connect("user"), config(mine={"files": (str(file),)}), ignore, ignore)
