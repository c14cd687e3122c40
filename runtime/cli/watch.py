"""``busrl status``, ``top`` and ``tail``: how a run is, once, live, and message by message."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.connect import connection, find, finish, open_bus, run_settings
from runtime.cli.text import BusUrl, CredentialsFile, RunName, RunsFolder, examples

if TYPE_CHECKING:
    from runtime.board import View
    from runtime.bus import Received
    from runtime.facts import Facts
    from runtime.runfolder import Connection, RunFolder

REFRESH_S = 0.5


@examples(
    "busrl status", "busrl status --run demo --json", "busrl status --bus nats://host:4222 --credentials user.json"
)
def status(
    run: RunName = None,
    runs: RunsFolder = "runs",
    bus: BusUrl = None,
    credentials: CredentialsFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as one JSON object.")] = False,
) -> None:
    """Show how a run is now; for a run that is not up, how it ended."""
    if bus is None and credentials is None:
        folder = find(run, runs)
        if not folder.is_up():
            _status_of_ended(folder, as_json)
            return
    finish(_status(connection(run, runs, bus, credentials), as_json))


async def _status(where: Connection, as_json: bool) -> None:
    from rich.console import Console

    from runtime.board import board, log_fields
    from runtime.recorder import Recorder

    async with open_bus(where) as bus:
        recorder = Recorder(bus, None)
        await recorder.start()
        await recorder.catch_up()
        await recorder.settle()
        await recorder.stop()
        view = _view(where, recorder.facts, await run_settings(bus))
    if as_json:
        print(json.dumps({"run": where.run, "up": True, **log_fields(recorder.facts, view)}))
    else:
        console = Console()
        console.print(board(recorder.facts, view, console.width, height=1000))


def _status_of_ended(folder: RunFolder, as_json: bool) -> None:
    from runtime.errors import UserError

    try:
        summary = json.loads(folder.summary.read_text())
    except (OSError, ValueError):
        raise UserError(f"run {folder.name!r} is not up and has no summary; `busrl up` continues it") from None
    if as_json:
        print(json.dumps({"up": False, **summary}))
        return
    print(f"run {folder.name} is not up; it ended because: {summary.get('ended_because', 'its launcher was killed')}")
    print(f"weight version {summary.get('weight_versions')}; figures: {folder.summary}")
    report = folder.path / "report.md"
    if report.exists():
        print(f"report: {report}")


@examples("busrl top", "busrl top --run demo")
def top(
    run: RunName = None, runs: RunsFolder = "runs", bus: BusUrl = None, credentials: CredentialsFile = None
) -> None:
    """Watch a run live, from any terminal; Ctrl-C leaves the run alone."""
    finish(_top(connection(run, runs, bus, credentials)))


async def _top(where: Connection) -> None:
    from rich.console import Console
    from rich.live import Live

    from runtime.board import board
    from runtime.recorder import Recorder

    console = Console()
    async with open_bus(where) as bus:
        settings = await run_settings(bus)
        recorder = Recorder(bus, None)
        await recorder.start()
        try:
            with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
                while True:
                    drawn = board(recorder.facts, _view(where, recorder.facts, settings), console.width, console.height)
                    live.update(drawn, refresh=True)
                    await asyncio.sleep(REFRESH_S)
        except asyncio.CancelledError:
            pass  # Ctrl-C: the person has seen enough
        finally:
            await recorder.stop()


def _view(where: Connection, facts: Facts, settings: dict[str, Any]) -> View:
    from runtime.board import View

    started = [actor.beat.started_s for actor in facts.actors.values()]
    now = time.time()
    return View(
        run=where.run,
        now_s=now,
        elapsed_s=now - min(started) if started else 0.0,
        max_steps=settings["run"]["max_steps"] if settings else 0,
        max_lag=settings["training"]["max_lag"] if settings else None,
        phase="up",
        url=where.url,
    )


@examples(
    "busrl tail steps",
    "busrl tail outcomes -n 100 --json | jq .reason",
    "busrl tail rollouts --follow --key arithmetic",
)
def tail(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="tasks, turns, rollouts, ..., steps, weights, dead.")],
    number: Annotated[int, typer.Option("-n", min=0, help="Messages from the end to begin with.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per record, arrays included.")] = False,
    key: Annotated[str | None, typer.Option("--key", help="Only this key, such as a domain.")] = None,
    run: RunName = None,
    runs: RunsFolder = "runs",
    bus: BusUrl = None,
    credentials: CredentialsFile = None,
) -> None:
    """Print the messages of a topic, the newest last."""
    from messages.topics import BY_NAME
    from runtime.errors import UserError

    readable = sorted(name for name, known in BY_NAME.items() if known.record is not None)
    if topic not in readable:
        raise UserError(f"there is no topic {topic!r} to read; topics: {', '.join(readable)}")
    where = connection(run, runs, bus, credentials)
    try:
        finish(_tail(where, topic, number, follow, as_json, key))
    except KeyboardInterrupt:
        return


async def _tail(where: Connection, name: str, number: int, follow: bool, as_json: bool, key: str | None) -> None:
    from messages.topics import BY_NAME
    from runtime.bus import Bus
    from runtime.errors import UserError

    topic = BY_NAME[name]

    async def newest(bus: Bus) -> int:
        state = await bus.stream_state(topic)
        left, seq = number, state.last_seq
        kept: list[Received] = []
        while left and seq >= max(1, state.first_seq):
            found = await bus.get(topic, seq)
            if found is not None and (key is None or key in found.subject.split(".")[3:]):
                kept.append(found)
                left -= 1
            seq -= 1
        for received in reversed(kept):
            _print(received, as_json)
        return state.last_seq

    async with open_bus(where) as bus:
        last = await newest(bus)
        if not follow:
            return
        if topic.retention == "work":
            raise UserError(f"{name} is a work queue, which only its actor may follow; leave out --follow")
        async for received in bus.follow(topic, last + 1):
            if key is None or key in received.subject.split(".")[3:]:
                _print(received, as_json)


def _print(received: Received, as_json: bool) -> None:
    from runtime.plain import one_line, plain

    for record in received.records:
        if as_json:
            where = {"seq": received.seq, "subject": received.subject}
            print(json.dumps({**where, **plain(record)}))
        else:
            print(f"{received.seq:>8}  {received.subject.split('.', 2)[2]}  {one_line(record)}")
    sys.stdout.flush()
