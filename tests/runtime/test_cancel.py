"""A task that swallows cancellations ends all the same."""

from __future__ import annotations

import asyncio

from runtime.cancel import cancel_and_wait


async def test_a_task_that_swallows_a_cancellation_is_cancelled_again():
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 3:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await asyncio.wait_for(cancel_and_wait([task]), 10)
    assert task.cancelled()
    assert swallowed == 3


async def test_tasks_that_have_ended_or_failed_are_no_trouble():
    async def fails() -> None:
        raise ValueError

    task = asyncio.create_task(fails())
    await asyncio.wait([task])
    await cancel_and_wait([task])
    await cancel_and_wait([])
    assert isinstance(task.exception(), ValueError)
