"""Publishing tasks on a real bus: once each, however often; another content under the same id is a conflict."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from messages import ChatMessage, Snapshot, Task, VerifierSpec, derive
from messages.topics import SNAPSHOTS, TASKS
from ops import telemetry
from runtime.cli.app import run
from runtime.errors import BusFull
from runtime.publisher import MAX_LISTED, publish_tasks
from runtime.task_files import BadLine, TaskLine
from tests.conftest import RUN, LiveBus


def task(number: int, answer: str = "2", **fields: object) -> Task:
    return Task(
        id=f"task-{number}",
        domain="sums",
        messages=(ChatMessage(role="user", content=f"{number}+1="),),
        verifier=VerifierSpec(kind="exact"),
        answer=answer,
        **fields,
    )


async def test_published_tasks_are_on_the_bus_under_their_split_domain_and_id(live: LiveBus):
    bus = await live.connect("user")
    report = await publish_tasks(bus, [task(1), task(2, split="eval")])
    assert (report.published, report.lines) == (2, 2)
    found = await bus.last(TASKS, "eval", "sums", derive("task-2"))
    assert found is not None
    assert found.records == [task(2, split="eval")]


async def test_publishing_again_changes_nothing(live: LiveBus):
    bus = await live.connect("user")
    tasks = [task(n, metadata={"pair": (n, [n])}) for n in range(300)]
    first = await publish_tasks(bus, tasks)
    again = await publish_tasks(bus, tasks)
    assert (first.published, first.already_there) == (300, 0)
    assert (again.published, again.already_there, again.conflicts) == (0, 300, 0)
    assert (await bus.stream_state(TASKS)).messages == 300


async def test_another_content_under_the_same_id_is_a_conflict_and_the_first_stays(live: LiveBus):
    bus = await live.connect("user")
    await publish_tasks(bus, [task(1)])
    report = await publish_tasks(bus, [TaskLine("f.jsonl:9", task(1, "3")), task(2)])
    assert (report.published, report.conflicts) == (1, 1)
    assert str(report.problems[0]) == "f.jsonl:9: task id 'task-1' already exists with other content"
    found = await bus.last(TASKS, "train", "sums", derive("task-1"))
    assert found is not None
    assert found.record.answer == "2"


async def test_an_id_that_occurs_twice_in_one_go_is_there_already_or_a_conflict(live: LiveBus):
    bus = await live.connect("user")
    report = await publish_tasks(bus, [task(1), task(1), task(1, "3")])
    assert (report.published, report.already_there, report.conflicts) == (1, 1, 1)


async def test_bad_lines_are_counted_and_listed_up_to_a_bound_and_the_good_ones_published(live: LiveBus):
    bus = await live.connect("user")
    lines: list[TaskLine | BadLine] = [BadLine(f"f:{n}", "bad") for n in range(50)]
    report = await publish_tasks(bus, [*lines, TaskLine("f:50", task(1))])
    assert (report.published, report.rejected, len(report.problems)) == (1, 50, MAX_LISTED)


async def test_a_server_that_is_killed_in_between_costs_no_task_and_doubles_none(live: LiveBus):
    bus = await live.connect("user")

    async def kill() -> None:
        assert live.server.pid is not None
        os.kill(live.server.pid, signal.SIGKILL)
        await live.server.wait()
        await live.server.start()

    seen = []
    killing: list[asyncio.Future[None]] = []

    def progress(report: object) -> None:
        seen.append(report)
        if len(seen) == 200:
            killing.append(asyncio.ensure_future(kill()))

    report = await publish_tasks(bus, (task(n) for n in range(600)), progress)
    await killing[0]
    assert report.published + report.already_there == 600
    assert (await bus.stream_state(TASKS)).messages == 600


async def test_a_stream_that_is_full_is_not_taken_for_a_duplicate(live: LiveBus, monkeypatch):
    admin = await live.connect()
    bus = await live.connect("user")
    info = json.loads((await admin.request_raw(f"$JS.API.STREAM.INFO.{TASKS.stream(RUN)}", b"")).data)
    config = {**info["config"], "max_msgs": 3}
    await admin.request_raw(f"$JS.API.STREAM.UPDATE.{TASKS.stream(RUN)}", json.dumps(config).encode())
    monkeypatch.setattr("runtime.publisher.DEADLINE_S", 0.2)
    with pytest.raises(BusFull):
        await publish_tasks(bus, [task(n) for n in range(9)])
    assert (await bus.stream_state(TASKS)).messages == 3


async def test_an_error_of_the_source_ends_publishing_with_that_error(live: LiveBus):
    def failing():
        yield task(1)
        raise RuntimeError("the source is broken")

    bus = await live.connect("user")
    with pytest.raises(RuntimeError, match="source is broken"):
        await publish_tasks(bus, failing())


async def test_each_task_begins_a_trace_that_travels_with_it(live: LiveBus, tmp_path: Path):
    bus = await live.connect("user")
    bus.telemetry = telemetry.setup("publish", instance="publish-1", run=RUN, folder=tmp_path, metrics=False)
    with bus.telemetry.span("outer"):
        await publish_tasks(bus, [task(1), task(2)])
    bus.telemetry.shutdown()
    traces = set()
    for received in await bus.read(TASKS):
        traces.add(received.headers["traceparent"].split("-")[1])
    spans = (tmp_path / "publish-1.spans.jsonl").read_text()
    assert len(traces) == 2
    assert all(trace in spans for trace in traces)


# --- the command ------------------------------------------------------------------------------------------------------


def connection_file(live: LiveBus, folder: Path) -> Path:
    login = live.logins["user"]
    users = {"user": {"user": login.user, "password": login.password}}
    file = folder / "user.json"
    file.write_text(json.dumps({"url": live.server.url, "run": RUN, "users": users}))
    return file


async def command(*arguments: object) -> tuple[int, str, str]:
    """Run ``busrl publish`` in a process of its own; also sees to it that torch was not imported."""
    code = (
        "import sys; from runtime.cli.app import run\n"
        "code = run(['publish', *sys.argv[1:]]); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, *map(str, arguments)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_the_command_publishes_a_file_names_its_bad_lines_and_exits_with_2(live: LiveBus, tmp_path: Path):
    user = connection_file(live, tmp_path)
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "1+1=", "answer": "2"}\n{nope\n{"prompt": "2+2=", "answer": "4"}\n')
    arguments = (file, "--domain", "sums", "--verifier", "numeric", "--credentials", user)
    code, out, err = await command(*arguments)
    assert (code, "published 2 tasks" in out) == (2, True), err
    assert f"{file}:2: is not JSON" in err
    code, out, err = await command(*arguments)
    assert "published 0 tasks" in out
    assert "2 were there already" in out


async def test_the_command_refuses_a_file_without_a_line(live: LiveBus, tmp_path: Path):
    (tmp_path / "empty.jsonl").write_text("")
    where = ("--domain", "sums", "--credentials", connection_file(live, tmp_path))
    code, _, err = await command(tmp_path / "empty.jsonl", *where)
    assert (code, err) == (2, "error: there was nothing to publish: not one line\n")


async def test_the_command_publishes_a_source_by_the_rules_of_the_run(live: LiveBus, tmp_path: Path):
    user = connection_file(live, tmp_path)
    admin = await live.connect()
    config = {"domains": {"arithmetic": {"verifier": None}}, "run": {"trust_code": False}}
    await admin.publish(SNAPSHOTS, [Snapshot(kind="run", saved_s=0.0, state=json.dumps(config))], "run")
    arguments = ("--n", 30, "--n-eval", 5, "--credentials", user)
    code, out, err = await command("--source", "arithmetic", *arguments)
    assert (code, "published 35 tasks" in out) == (0, True), err
    code, out, err = await command("--source", "strings", *arguments)
    assert code == 2
    assert "no domain 'strings'" in err
    assert "... and 15 more" in err
    code, out, err = await command("--source", "strings", "--domain", "arithmetic", *arguments)
    assert (code, "published 35 tasks" in out) == (0, True), err


async def test_the_command_with_another_seed_adds_training_tasks_only(live: LiveBus, tmp_path: Path):
    arguments = ("--source", "arithmetic", "--n", 10, "--n-eval", 5, "--credentials", connection_file(live, tmp_path))
    await command(*arguments)
    _, out, _ = await command(*arguments, "--seed", 1)
    assert "published 10 tasks" in out
    assert "5 were there already" in out


async def test_the_command_writes_the_traces_of_its_tasks_beside_the_runs_own(live: LiveBus, tmp_path: Path):
    folder = tmp_path / "runs" / RUN
    folder.mkdir(parents=True)
    connection_file(live, folder).rename(folder / "connection.json")
    resolved = {"run": {"name": RUN}, "policy": {"path": "p"}, "domains": {"arithmetic": {}}}
    (folder / "resolved.json").write_text(json.dumps({**resolved, "bus": {"url": live.server.url}}))
    code, _, err = await command("--source", "arithmetic", "--n", 3, "--n-eval", 0, "--run", folder)
    assert code == 0, err
    (spans,) = folder.glob("telemetry/publish-*.spans.jsonl")
    assert spans.read_text().count("publish busrl.{run}.tasks") == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "either files or --source"),
        (("a.jsonl", "--source", "arithmetic"), "not both"),
        (("absent.jsonl",), "no such file"),
        (("a.jsonl", "--n", 3), "--n is for --source"),
        (("--source", "arithmetic", "--verifier", "exact"), "--verifier is for files"),
        (("a.jsonl", "--m", 3), "--m"),
        (("--source", "arithmetic", "--n", "many"), "--n"),
        (("--source", "arithmetic", "--bus", "nats://127.0.0.1:1", "--run", "x"), "no bus at nats://127.0.0.1:1"),
        (("--source", "no-such"), "no task source 'no-such'"),
        (("--source", "arithmetic", "--name", "x"), "no option 'name'"),
        (("a.jsonl", "--split", "test"), "expected train or eval"),
        (("a.jsonl", "--verifier", "exact", "--verifier-options", "{"), "not JSON"),
        (("a.jsonl", "--verifier-options", "{}"), "needs --verifier"),
    ],
)
def test_arguments_that_make_no_sense_are_one_line_and_exit_code_2(arguments, words, capsys):
    code = run(["publish", *map(str, arguments)])
    err = capsys.readouterr().err
    assert code == 2
    assert words in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
