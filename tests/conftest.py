"""What every test may use: a real nats-server of its own with the credentials of a run, and connections to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runtime.bus import Bus
from runtime.declare import declare
from runtime.permissions import ADMIN, BusUser, users
from runtime.server import NatsServer

RUN = "test"


@dataclass
class LiveBus:
    """A nats-server with every stream of the run ``test`` and a connection per actor kind on demand."""

    server: NatsServer
    logins: dict[str, BusUser]
    open: list[Bus] = field(default_factory=list)

    async def connect(self, kind: str = ADMIN, name: str | None = None) -> Bus:
        """A connection with the credentials of a kind."""
        login = self.logins[kind]
        bus = await Bus.connect(
            self.server.url, RUN, user=login.user, password=login.password, name=name or kind, timeout_s=10
        )
        self.open.append(bus)
        return bus


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[LiveBus]:
    """A started server with declared streams."""
    made = users(RUN)
    server = NatsServer(tmp_path / "bus", authorization={"users": [user.authorization() for user in made]})
    await server.start()
    bus = LiveBus(server, {user.kind: user for user in made})
    try:
        await declare(await bus.connect())
        yield bus
    finally:
        for connection in bus.open:
            await connection.close()
        await server.stop()


Connect = Callable[..., Awaitable[Bus]]
