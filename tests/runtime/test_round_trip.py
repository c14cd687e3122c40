"""Closing a pull in the middle of its round trip, cancelled: the connection goes on receiving."""

from __future__ import annotations

import asyncio

from messages.topics import TURNS
from runtime.pull import PullRequests
from tests.conftest import RUN, LiveBus


async def test_a_close_that_is_cancelled_leaves_the_connection_whole(live: LiveBus) -> None:
    bus = await live.connect()
    for _ in range(20):
        pull = PullRequests(bus, TURNS.stream(RUN), TURNS.durable("generator"))
        await pull.fetch(1, 1 << 20, 0.001)
        closing = asyncio.create_task(pull.close())
        while not bus.nc._pongs:  # noqa: ASYNC110 the PING is on its way, its PONG is not back
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        assert closing.cancelled()
        state = await asyncio.wait_for(bus.stream_state(TURNS), 10)
        assert state.messages == 0
