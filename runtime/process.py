"""One actor as one operating-system process: ``python -m runtime.process KIND``.

Exit codes: 0 drained, 2 bad input (starting again would not help), 1 anything else (the supervisor starts it again).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from messages.topics import SNAPSHOTS
from ops import logs
from ops import telemetry as ops_telemetry
from runtime.actor import Actor, ActorContext
from runtime.bus import Bus
from runtime.config import ACTOR_KINDS, RunConfig
from runtime.errors import UserError
from runtime.life import Life
from runtime.weights import machine_id

log = structlog.get_logger()


@dataclass(frozen=True)
class Seat:
    """Where an actor process belongs.

    Attributes:
        folder: the run's folder, when it is on this machine.
        policy: model folder on this machine, where the run's own path does not exist.
    """

    kind: str
    index: int
    url: str
    run_name: str
    folder: Path | None
    user: str | None
    password: str | None
    policy: str | None = None


def actor_class(path: str) -> type[Actor]:
    """The class at a dotted path, loaded only in the process that runs it.

    Raises:
        UserError: it needs a package that is not installed.
    """
    module, name = path.split(":")
    try:
        found: type[Actor] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        missing = error.name or "?"
        extra = {"torch": "torch", "transformers": "torch", "reasoning_gym": "domains"}.get(missing.split(".")[0])
        hint = f"; install busrl[{extra}]" if extra else ""
        raise UserError(f"{module} needs the package {missing!r}{hint}") from error
    return found


def read_seat(arguments: argparse.Namespace) -> Seat:
    """Where this process belongs, from its arguments.

    Raises:
        UserError: the run folder or the credentials can not be read.
    """
    if arguments.folder is not None:
        folder = Path(arguments.folder)
        connection = _read_json(folder / "connection.json", "run folder")
        login = connection["users"].get(arguments.kind) or {}
        return Seat(
            arguments.kind,
            arguments.index,
            connection["url"],
            connection["run"],
            folder,
            login.get("user"),
            login.get("password"),
            arguments.policy,
        )
    logins = _read_json(Path(arguments.credentials), "credentials file") if arguments.credentials else {}
    users = logins.get("users", logins)
    login = users.get(arguments.kind) or {}
    run_name = arguments.run_name or logins.get("run")
    if not run_name:
        raise UserError("which run? give --run-name, or a credentials file that names it (key 'run')")
    url = arguments.bus or logins.get("url")
    if not url:
        raise UserError("which bus? give --bus nats://HOST:PORT, or a credentials file that names it (key 'url')")
    login_user, login_password = login.get("user"), login.get("password")
    return Seat(arguments.kind, arguments.index, url, run_name, None, login_user, login_password, arguments.policy)


def _read_json(path: Path, what: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; is this the {what} of a run?") from None
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: can not be read: {error}") from error
    return found


async def resolved_run(bus: Bus, seat: Seat) -> RunConfig:
    """The run file as the launcher resolved it: from the run folder, or from the bus.

    Raises:
        UserError: there is none.
    """
    from runtime.runfile import from_json

    if seat.folder is not None:
        return from_json((seat.folder / "resolved.json").read_text())
    found = await bus.last(SNAPSHOTS, "run")
    if found is None:
        raise UserError(f"run {seat.run_name!r} has not been started on {seat.url}: it has no published run file")
    return from_json(found.record.state)


async def live(seat: Seat) -> None:
    """Connect, make the actor, and run it until it is told to drain."""
    instance = f"{seat.kind}-{seat.index}"
    bus = await Bus.connect(
        seat.url, seat.run_name, user=seat.user, password=seat.password, name=instance, timeout_s=15.0
    )
    run = await resolved_run(bus, seat)
    if seat.policy is not None:
        run = run.model_copy(update={"policy": run.policy.model_copy(update={"path": seat.policy})})
    with contextlib.ExitStack() as stack:
        folder = seat.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="busrl-")))
        telemetry = ops_telemetry.setup(
            seat.kind,
            instance=instance,
            run=seat.run_name,
            folder=folder / "telemetry",
            traces=run.telemetry.traces,
            sample_ratio=run.telemetry.sample_ratio,
            sample_always=seat.kind in ("learner", "evaluator"),
            interval_s=run.telemetry.interval_s,
        )
        bus.telemetry = telemetry
        context = ActorContext(
            run, bus, telemetry, instance, seat.index, run.section(seat.kind).count, folder, machine_id()
        )
        actor = actor_class(run.section(seat.kind).actor_path(seat.kind))(context)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, actor.draining.set)
        try:
            await Life(actor).run()
        finally:
            await asyncio.to_thread(telemetry.shutdown)
            await bus.close()


def main(argv: list[str] | None = None) -> int:
    """Run an actor; returns the exit code."""
    parser = argparse.ArgumentParser(prog="runtime.process", description=__doc__)
    parser.add_argument("kind", choices=ACTOR_KINDS)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--folder", help="run folder on this machine")
    parser.add_argument("--bus", help="nats:// address of a run on another machine")
    parser.add_argument("--run-name")
    parser.add_argument("--credentials", help="JSON file with the users of the run")
    parser.add_argument("--policy", help="model folder here, if the run's own path does not exist on this machine")
    arguments = parser.parse_args(argv)
    logs.setup(actor=arguments.kind, instance=f"{arguments.kind}-{arguments.index}", run=arguments.run_name or "")
    try:
        seat = read_seat(arguments)
        asyncio.run(live(seat))
    except UserError as error:
        log.error("can not run", error=str(error))
        sys.stderr.write(f"error: {error}\n")
        return 2
    except Exception:
        log.exception("actor failed")
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of torch must not keep a drained actor alive
