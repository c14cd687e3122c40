"""``busrl dead list|show|replay``: messages that no actor could handle, kept whole, and put back one day."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.connect import connection, finish, open_bus
from runtime.cli.text import BusUrl, CredentialsFile, RunName, RunsFolder, epilog, examples

if TYPE_CHECKING:
    from runtime.replay import Letter
    from runtime.runfolder import Connection

NARROW = 100
"""Columns below which only what finds a letter and what killed it are listed."""
WIDE_AS_A_FILE = 400
"""Columns where there is no terminal."""

app = typer.Typer(no_args_is_help=True, help="Messages that were given up: list, show and replay them.")

AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
LetterId = Annotated[str, typer.Argument(metavar="ID", help="Beginning of a dead letter's id, or its number.")]


@examples("busrl dead list", "busrl dead list --json | jq .error")
def list_letters(
    run: RunName = None,
    runs: RunsFolder = "runs",
    bus: BusUrl = None,
    credentials: CredentialsFile = None,
    as_json: AsJson = False,
) -> None:
    """List the dead letters, oldest first."""
    letters = finish(_read(connection(run, runs, bus, credentials)))
    if as_json:
        for item in letters:
            print(json.dumps({"number": item.seq, **item.letter.model_dump(mode="json", exclude={"payload"})}))
        return
    if not letters:
        print("there are no dead letters")
        return
    _table(letters)


def _table(letters: list[Letter]) -> None:
    """One line per letter: its number and id whole, whatever the width; the error gets what is left."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE_AS_A_FILE)
    rows = [_row(item) for item in letters]
    shown = [name for name in rows[0] if console.width >= NARROW or name not in ("died", "actor")]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in shown:
        whole = max(len(name), *(len(row[name]) for row in rows)) if name != "error" else None
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=whole)
    for row in rows:
        table.add_row(*(row[name] for name in shown))
    console.print(table, markup=False, highlight=False)


def _row(item: Letter) -> dict[str, str]:
    letter = item.letter
    return {
        "no.": str(item.seq),
        "id": letter.id[:10],
        "died": datetime.fromtimestamp(letter.died_s, UTC).strftime("%H:%M:%S"),
        "topic": letter.topic,
        "reason": letter.reason.value,
        "actor": letter.actor,
        "error": letter.error,
    }


@examples("busrl dead show 3f2a", "busrl dead show 1 --json")
def show(
    letter_id: LetterId,
    run: RunName = None,
    runs: RunsFolder = "runs",
    bus: BusUrl = None,
    credentials: CredentialsFile = None,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: why it died, its traceback, its headers and what it carried."""
    from messages import MessageError, decode, headers
    from runtime.plain import one_line, plain
    from runtime.replay import find_letter

    letter = find_letter(finish(_read(connection(run, runs, bus, credentials))), letter_id).letter
    if as_json:
        print(json.dumps(plain(letter)))
        return
    for name in ("id", "topic", "subject", "stream_seq", "actor", "deliveries", "group_id", "error"):
        print(f"{name:<12}{getattr(letter, name)}")
    print(f"{'reason':<12}{letter.reason.value}")
    for header, value in letter.headers.items():
        print(f"{'header':<12}{header}: {value}")
    if letter.traceback:
        print(letter.traceback.rstrip())
    try:
        for record in decode(letter.headers.get(headers.SCHEMA), letter.payload):
            print(f"{'carried':<12}{one_line(record)}")
    except MessageError as error:
        print(f"{'carried':<12}{len(letter.payload)} bytes that can not be read: {error}")


@examples("busrl dead replay 3f2a", "busrl dead replay --all", "busrl dead replay --all --topic rollouts")
def replay(
    letter_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Beginning of an id, or a number.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every dead letter.")] = False,
    topic: Annotated[str | None, typer.Option("--topic", help="With --all: only those of this topic.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="With --all: only those with this reason.")] = None,
    run: RunName = None,
    runs: RunsFolder = "runs",
    bus: BusUrl = None,
    credentials: CredentialsFile = None,
) -> None:
    """Put messages back on their topic, once their cause is gone. Their groups count as open again."""
    from messages import DeadReason
    from messages.topics import BY_NAME
    from runtime.errors import UserError

    if every == (letter_id is not None):
        raise UserError("name one dead letter, or use --all")
    if not every and (topic or reason):
        raise UserError("--topic and --reason choose among --all; they do not go with one dead letter")
    if topic is not None and topic not in BY_NAME:
        raise UserError(f"there is no topic {topic!r}; topics: {', '.join(BY_NAME)}")
    if reason is not None and reason not in list(DeadReason):
        raise UserError(f"there is no reason {reason!r}; reasons: {', '.join(DeadReason)}")
    finish(_replay(connection(run, runs, bus, credentials), letter_id, topic, reason))


async def _replay(where: Connection, letter_id: str | None, topic: str | None, reason: str | None) -> None:
    from runtime.replay import find_letter, read_letters, replay

    async with open_bus(where) as bus:
        letters = await read_letters(bus)
        chosen = [find_letter(letters, letter_id)] if letter_id is not None else letters
        chosen = [
            item for item in chosen if topic in (None, item.letter.topic) and reason in (None, item.letter.reason)
        ]
        for item in chosen:
            done = await replay(bus, item.letter)
            already = " (it had been replayed before; nothing was stored twice)" if done.duplicate else ""
            print(f"replayed {item.letter.id[:10]} to {item.letter.subject}{already}")
        print(f"{len(chosen)} of {len(letters)} dead letters replayed")


async def _read(where: Connection) -> list[Letter]:
    from runtime.replay import read_letters

    async with open_bus(where) as bus:
        return await read_letters(bus)


app.command("list", epilog=epilog(list_letters))(list_letters)
app.command("show", epilog=epilog(show))(show)
app.command("replay", epilog=epilog(replay))(replay)
