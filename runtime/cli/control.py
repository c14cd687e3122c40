"""``busrl actor`` and ``busrl control``: join a run from elsewhere, and give its actors orders."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.connect import connection, find, finish, open_bus
from runtime.cli.text import BusUrl, CredentialsFile, RunName, RunsFolder, examples

if TYPE_CHECKING:
    from runtime.runfolder import Connection

COMMANDS = ("pause", "resume", "drain")


@examples(
    "busrl actor generator --bus nats://trainer:4222 --credentials generator.json --index 8",
    "busrl actor verifier --run demo --index 4 --threads 2",
)
def actor(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="generator, verifier, evaluator, ...")],
    run: RunName = None,
    runs: RunsFolder = "runs",
    bus: BusUrl = None,
    credentials: CredentialsFile = None,
    index: Annotated[
        int, typer.Option("--index", min=0, help="Number among its kind; one that no other process has.")
    ] = 1,
    threads: Annotated[int, typer.Option("--threads", min=1, help="CPU threads.")] = 1,
    policy: Annotated[
        str | None, typer.Option("--policy", metavar="FOLDER", help="Model folder here, where the run's path is not.")
    ] = None,
) -> None:
    """Join a run as one more actor, from another shell or another machine. Ctrl-C drains it."""
    from runtime.config import ACTOR_KINDS
    from runtime.errors import UserError
    from runtime.supervisor import actor_environment

    if kind not in ACTOR_KINDS:
        raise UserError(f"there is no actor {kind!r}; kinds: {', '.join(ACTOR_KINDS)}")
    command = [sys.executable, "-m", "runtime.process", kind, "--index", str(index)]
    if bus is None and credentials is None:
        command += ["--folder", str(find(run, runs).path)]
    else:
        where = connection(run, runs, bus, credentials)
        if where.users and kind not in where.users:
            raise UserError(
                f"{credentials} has no credentials of a {kind}, only of {', '.join(where.users)}; "
                f"take credentials/{kind}.json of the run folder"
            )
        command += ["--bus", where.url, "--run-name", where.run]
        command += ["--credentials", credentials] if credentials else []
    if policy is not None:
        if not (Path(policy) / "config.json").is_file():
            raise UserError(f"--policy {policy}: is not a Hugging Face model folder (there is no config.json in it)")
        command += ["--policy", str(Path(policy).resolve())]
    sys.stdout.flush()
    os.execve(command[0], command, actor_environment(threads))


@examples("busrl control pause generator", "busrl control resume", "busrl control drain verifier --run demo")
def control(
    command: Annotated[str, typer.Argument(metavar="COMMAND", help="pause, resume or drain.")],
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="Only actors of this kind.")] = None,
    run: RunName = None,
    runs: RunsFolder = "runs",
    bus: BusUrl = None,
    credentials: CredentialsFile = None,
) -> None:
    """Order the actors of a run to pause, to resume, or to drain and end."""
    from runtime.config import ACTOR_KINDS
    from runtime.errors import UserError

    if command not in COMMANDS:
        raise UserError(f"there is no order {command!r}; orders: {', '.join(COMMANDS)}")
    if kind is not None and kind not in ACTOR_KINDS:
        raise UserError(f"there is no actor {kind!r}; kinds: {', '.join(ACTOR_KINDS)}")
    finish(_order(connection(run, runs, bus, credentials), command, kind))
    print(f"told {kind or 'every actor'} to {command}")


async def _order(where: Connection, command: Any, kind: str | None) -> None:
    from messages import Control
    from messages.topics import CONTROL

    async with open_bus(where) as bus:
        order = Control(command=command, kind=kind, sent_s=time.time())
        await bus.publish(CONTROL, [order], kind or "all", deadline_s=10)
