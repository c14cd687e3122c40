"""A run comes up on an embedded or an external bus, is refused when it is another, and keeps its folder in order."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from messages.topics import SNAPSHOTS, STEPS
from runtime.bus import Bus
from runtime.declare import declare
from runtime.display import Display
from runtime.errors import BusUnreachable, ConfigError, UserError
from runtime.launcher import Launcher, free_earlier_port, read_external_credentials, refuse_other_run
from runtime.permissions import ADMIN, users
from runtime.runfile import from_json, load
from runtime.runfolder import Connection, Credentials, RunFolder, find_run
from runtime.server import NatsServer
from tests.runtime.sample_run import step

RUN_FILE = """
[run]
name = "done"
max_steps = 1
[policy]
path = "policy"
[domains.sums]
[evaluator]
count = 0
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    (tmp_path / "run.toml").write_text(RUN_FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def up(path: Path) -> tuple[int, str]:
    """Bring a run up and wait for its end; exit code and what was shown."""
    console = Console(file=io.StringIO(), width=200)
    code = await Launcher(load(path), path, Display(console, live=False)).run()
    return code, console.file.getvalue()


async def reach_the_goal(url: str, who: Credentials) -> None:
    """What a learner said before: the run's last version is there."""
    bus = await Bus.connect(url, "done", user=who.user, password=who.password)
    await declare(bus)
    await bus.publish(STEPS, [step(1)], "1")
    await bus.close()


async def embedded_run_at_its_goal(folder: Path) -> RunFolder:
    run = RunFolder(folder / "runs" / "done")
    run.create()
    made = users("done")
    server = NatsServer(run.bus, "done", authorization={"users": [login.authorization() for login in made]})
    await server.start()
    named = {login.kind: Credentials(login.user, login.password) for login in made}
    run.write_connection(Connection(server.url, "done", named))
    await reach_the_goal(server.url, named[ADMIN])
    await server.stop()
    return run


async def test_a_run_at_its_goal_starts_no_actor_and_reports(folder: Path):
    run = await embedded_run_at_its_goal(folder)
    code, shown = await up(folder / "run.toml")
    assert code == 0
    assert "run done ended: weight version 1 is reached" in shown
    assert json.loads(run.summary.read_text())["weight_versions"] == 1
    assert [path.name for path in run.logs.iterdir()] == ["launcher-0.log"]
    assert (folder / "runs" / "latest").resolve() == run.path


async def test_passwords_and_port_stay_when_a_run_is_continued(folder: Path):
    run = await embedded_run_at_its_goal(folder)
    before = run.connection()
    await up(folder / "run.toml")
    after = run.connection()
    assert after.users == before.users
    assert after.url == before.url


async def test_an_external_bus_is_used_as_it_is(folder: Path):
    server = NatsServer(folder / "mine")
    await server.start()
    await reach_the_goal(server.url, Credentials())
    (folder / "run.toml").write_text(RUN_FILE + f'[bus]\nurl = "{server.url}"\n')
    code, _ = await up(folder / "run.toml")
    assert code == 0
    assert not (folder / "runs" / "done" / "bus").exists()
    assert await server.healthy()
    await server.stop()


async def test_an_external_bus_that_does_not_answer_is_bad_input(folder: Path):
    (folder / "run.toml").write_text(RUN_FILE + '[bus]\nurl = "nats://127.0.0.1:9"\n')
    with pytest.raises(BusUnreachable, match=r"no bus at nats://127\.0\.0\.1:9"):
        await up(folder / "run.toml")


async def test_a_run_has_one_launcher_at_a_time(folder: Path):
    run = RunFolder(folder / "runs" / "done")
    run.create()
    with run.hold(), pytest.raises(UserError, match=rf"run 'done' is already up \(process {os.getpid()}"):
        await up(folder / "run.toml")
    assert not run.is_up()


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (("max_steps = 1", "max_steps = 1\nseed = 4"), "run.seed"),
        (("[evaluator]", "[training]\ngroup_size = 4\n[evaluator]"), "training.group_size"),
        (("[evaluator]", '[bus]\nurl = "nats://a:1"\n[evaluator]'), "bus.url"),
    ],
)
def test_a_folder_holds_one_run_and_no_other(folder: Path, change: tuple[str, str], key: str):
    run = RunFolder(folder / "runs" / "done")
    run.create()
    run.write_config(load(folder / "run.toml"), RUN_FILE)
    (folder / "other.toml").write_text(RUN_FILE.replace(*change))
    with pytest.raises(ConfigError, match=f"holds a run with {key} ="):
        refuse_other_run(run, load(folder / "other.toml"))


def test_a_run_may_be_continued_with_another_goal(folder: Path):
    run = RunFolder(folder / "runs" / "done")
    run.create()
    run.write_config(load(folder / "run.toml"), RUN_FILE)
    (folder / "more.toml").write_text(RUN_FILE.replace("max_steps = 1", "max_steps = 9"))
    refuse_other_run(run, load(folder / "more.toml"))


def test_what_a_folder_keeps_is_what_was_resolved(folder: Path):
    run = RunFolder(folder / "runs" / "done")
    run.create()
    config = load(folder / "run.toml")
    run.write_config(config, RUN_FILE)
    assert run.config() == config == from_json(run.resolved.read_text())
    assert run.run_file.read_text() == RUN_FILE


def test_a_connection_reads_back_whole_and_one_user_alone(folder: Path):
    run = RunFolder(folder / "runs" / "done")
    run.create()
    connection = Connection("nats://a:1", "done", {"user": Credentials("u", "p"), "learner": Credentials("l", "q")})
    run.write_connection(connection)
    assert run.connection() == connection
    alone = json.loads((run.credentials / "learner.json").read_text())
    assert alone["users"] == {"learner": {"user": "l", "password": "q"}}
    assert "password='q'" not in repr(connection)


def test_the_latest_run_is_found_and_a_missing_one_named_with_those_there(folder: Path):
    for name in ("one", "two"):
        run = RunFolder(folder / "runs" / name)
        run.create()
        run.write_config(load(folder / "run.toml"), RUN_FILE)
        run.point_latest()
    assert find_run(None).name == "two"
    assert find_run("one").name == "one"
    assert find_run("runs/one").name == "one"
    with pytest.raises(UserError, match="there is no run 'three'; runs in runs/: one, two"):
        find_run("three")


def test_credentials_of_an_external_bus_are_read_or_refused(folder: Path):
    good, bad = folder / "good.json", folder / "bad.json"
    good.write_text(json.dumps({"user": {"user": "u", "password": "p"}}))
    bad.write_text(json.dumps({"user": "u"}))
    assert read_external_credentials(str(good)) == {"user": Credentials("u", "p")}
    assert read_external_credentials(None) == {}
    with pytest.raises(UserError, match=r"bad\.json is not JSON of the form"):
        read_external_credentials(str(bad))


def test_a_port_that_is_taken_is_not_asked_for_again(folder: Path):
    import socket

    run = RunFolder(folder / "runs" / "done")
    run.create()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run.write_connection(Connection(f"nats://127.0.0.1:{port}", "done", {}))
        assert free_earlier_port(run) == 0
    assert free_earlier_port(run) == port


async def test_the_resolved_run_file_is_on_the_bus_for_actors_elsewhere(folder: Path):
    server = NatsServer(folder / "mine")
    await server.start()
    (folder / "run.toml").write_text(RUN_FILE + f'[bus]\nurl = "{server.url}"\n')
    launcher = Launcher(
        load(folder / "run.toml"), folder / "run.toml", Display(Console(file=io.StringIO()), live=False)
    )
    bus = await Bus.connect(server.url, "done")
    await declare(bus)
    await launcher._publish(bus)
    found = await bus.last(SNAPSHOTS, "run")
    assert from_json(found.record.state) == launcher.config
    await bus.close()
    await server.stop()
