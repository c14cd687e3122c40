"""A generator process that publishes what it made and then never acknowledges: to be killed from outside."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from runtime.bus import Bus
from runtime.inbox import Inbox
from runtime.life import Life
from tests.runtime.tiny import QuickTiny, context


async def never_settle(*_: object) -> None:
    sys.stdout.write("published\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def main(url: str, user: str, password: str, folder: str) -> None:
    Inbox._settle = never_settle
    bus = await Bus.connect(url, "test", user=user, password=password, timeout_s=10)
    await Life(QuickTiny(context(bus, Path(folder), index=7))).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
