"""The engine's thread as asyncio sees it: answers, swaps, errors and the end."""

from __future__ import annotations

import asyncio
import itertools
import threading

import numpy as np
import pytest
import torch

from actors.policy.engine import EngineError, PromptTooLong, Request, SamplingParams, TorchEngine
from actors.policy.engine_thread import EngineThread


def request(name: str, *, n: int = 2, max_tokens: int = 8) -> Request:
    return Request(name, np.array([1, 2, 3], np.int32), n, SamplingParams(max_tokens=max_tokens))


class Gate:
    """An engine's clock that stops the engine at its n-th reading until it is opened."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._readings = 0
        self._open = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._reached = asyncio.Event()

    def __call__(self) -> float:
        self._readings += 1
        if self._readings == self._at:
            self._loop.call_soon_threadsafe(self._reached.set)
            assert self._open.wait(20)
        return float(self._readings)

    async def reached(self) -> None:
        await asyncio.wait_for(self._reached.wait(), 20)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
async def serve(make_llama):
    """Start an engine's thread that ends with the test."""
    started: list[EngineThread] = []

    def start(gate: Gate | None = None, **more) -> EngineThread:
        clock = {} if gate is None else {"clock": gate}
        started.append(EngineThread(TorchEngine(make_llama(), max_sequences=4, **clock), **more))
        return started[-1]

    yield start
    for thread in started:
        await asyncio.wait_for(thread.close(), 20)


async def queued(call) -> asyncio.Task:
    """Start a call and let it queue its command."""
    task = asyncio.create_task(call)
    await asyncio.sleep(0)
    return task


async def test_requests_at_once_each_get_their_own_samples(serve):
    thread = serve()
    answers = await asyncio.gather(*(thread.generate(request(str(k), n=k + 1, max_tokens=k + 3)) for k in range(6)))
    assert [[len(s.token_ids) for s in samples] for samples in answers] == [[k + 3] * (k + 1) for k in range(6)]
    load = thread.load()
    assert load.generated_tokens == sum((k + 3) * (k + 1) for k in range(6))
    assert load.n_running == load.n_waiting == 0
    assert load.tokens_per_s == pytest.approx(load.generated_tokens / load.busy_s)


async def test_time_without_work_is_waiting_and_time_in_steps_is_busy(serve):
    ticks = itertools.count()
    thread = serve(clock=lambda: float(next(ticks)))
    await thread.generate(request("a", max_tokens=5))
    await thread.generate(request("b", max_tokens=7))
    assert thread.load().waiting_s == 2
    assert thread.load().busy_s == 5 + 7


async def test_weights_are_swapped_while_sequences_are_in_flight(serve, make_llama):
    gate = Gate(at=30)
    thread = serve(gate)
    running = await queued(thread.generate(request("a", n=4, max_tokens=120)))
    await gate.reached()
    swap = await queued(thread.load_weights(make_llama(2).state_dict(), epoch=0, version=1))
    gate.open()
    await swap
    for sample in await running:
        assert set(sample.versions.tolist()) == {0, 1}
        assert (np.diff(sample.versions) >= 0).all()


async def test_refusals_reach_the_caller_and_the_engine_goes_on(serve):
    thread = serve()
    with pytest.raises(PromptTooLong, match="request long"):
        await thread.generate(request("long", max_tokens=1000))
    with pytest.raises(EngineError, match="unexpected: x"):
        await thread.load_weights({"x": torch.zeros(1)}, 0, 1)
    assert thread.dead is None
    assert len(await thread.generate(request("fine"))) == 2


async def test_an_error_in_the_engine_ends_everything_that_waits_and_marks_it_dead(serve, make_llama):
    gate = Gate(at=30)
    thread = serve(gate)
    waiting = [await queued(thread.generate(request(str(k), max_tokens=120))) for k in range(8)]
    await gate.reached()
    poison = {name: torch.full_like(t, float("nan")) for name, t in make_llama().state_dict().items()}
    swap = await queued(thread.load_weights(poison, 0, 1))
    gate.open()
    await swap
    errors = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
    assert all(isinstance(e, EngineError) and "not finite" in str(e) for e in errors)
    assert isinstance(thread.dead, EngineError)
    with pytest.raises(EngineError, match="not finite"):
        await thread.generate(request("late"))


async def test_a_bug_in_the_engine_surfaces_with_its_name(serve):
    thread = serve()
    with pytest.raises(EngineError, match="its thread broke with TypeError"):
        await thread.load_weights(None, 0, 1)
    assert thread.dead is not None


async def test_cancelling_the_task_ends_its_samples_in_the_engine(serve):
    gate = Gate(at=30)
    thread = serve(gate)
    task = await queued(thread.generate(request("a", max_tokens=120)))
    await gate.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.open()
    await thread.generate(request("b", max_tokens=2))
    assert thread.load().n_running == 0
    assert thread.load().generated_tokens < 2 * 120


async def test_closing_ends_what_waits_and_refuses_what_comes(serve):
    gate = Gate(at=30)
    thread = serve(gate)
    tasks = [await queued(thread.generate(request(str(k), max_tokens=120))) for k in range(4)]
    await gate.reached()
    closing = await queued(thread.close())
    gate.open()
    await closing
    errors = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
    assert all(isinstance(e, EngineError) and "closed" in str(e) for e in errors)
    with pytest.raises(EngineError, match="closed"):
        await thread.generate(request("late"))
