"""Ending tasks for certain.

On Python 3.11 ``asyncio.wait_for`` swallows a cancellation that arrives in the same moment as what it waits for, and
the client library waits that way in every request. One ``cancel()`` may so be lost, and who awaits the task waits for
ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_S = 0.1


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, again and again, until each has ended; how they ended is not of interest."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
