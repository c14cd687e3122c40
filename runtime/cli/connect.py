"""A command's way to a run: found by name, or by the address and the credentials that it was given."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from runtime.bus import Bus
    from runtime.runfolder import Connection, RunFolder

T = TypeVar("T")


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's asynchronous part without the log lines of the parts it uses."""
    import logging

    from ops import logs

    logs.setup(actor="cli", level="error")
    logging.getLogger("nats").setLevel(logging.CRITICAL)
    return asyncio.run(work)


def find(run: str | None, runs: str) -> RunFolder:
    """The run folder that is meant.

    Raises:
        UserError: there is none; the message lists what there is.
    """
    from runtime.runfolder import find_run

    return find_run(run, runs)


def connection(run: str | None, runs: str, url: str | None, credentials: str | None) -> Connection:
    """How to reach the bus: from a credentials file when one is given, from the run folder otherwise.

    Raises:
        UserError: neither says enough.
    """
    from dataclasses import replace

    from runtime.config import EMBEDDED
    from runtime.errors import UserError
    from runtime.runfolder import Connection, read_connection

    if credentials is not None:
        found = read_connection(Path(credentials))
        return replace(found, url=url or found.url, run=run or found.run)
    if url is not None:
        if run is None:
            raise UserError("--bus without --credentials needs --run NAME, since a bus may carry several runs")
        return Connection(url, run, {})
    folder = find(run, runs)
    if folder.config().bus.url == EMBEDDED and not folder.is_up():
        raise UserError(f"run {folder.name!r} is not up; `busrl up` with its run file continues it")
    return folder.connection()


@asynccontextmanager
async def open_bus(where: Connection, kind: str = "user") -> AsyncIterator[Bus]:
    """A connection as a person, closed at the end.

    Raises:
        BusUnreachable: nothing answers, or it refuses the credentials.
    """
    from runtime.bus import Bus

    who = where.of(kind)
    bus = await Bus.connect(where.url, where.run, user=who.user, password=who.password, name=f"cli-{kind}")
    try:
        yield bus
    finally:
        await bus.close()


async def run_settings(bus: Bus) -> dict[str, Any]:
    """The resolved run file as the launcher put it on the bus; empty when it has not."""
    from messages.topics import SNAPSHOTS

    received = await bus.last(SNAPSHOTS, "run")
    found: dict[str, Any] = json.loads(received.record.state) if received is not None else {}
    return found
