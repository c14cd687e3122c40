"""The engine in a thread of its own, as an asyncio program sees it.

Promise: the event loop never waits for the engine; every awaited call ends, with a result or with an EngineError. What
breaks the engine's thread breaks all that waits and all that comes later, never hangs it. Weights are loaded between
two decode steps. The thread sleeps when there is nothing to decode, and says for how long it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from actors.policy.engine import Request, Sample, TorchEngine
from actors.policy.engine_errors import EngineError


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """A snapshot: sequences running and waiting, seconds idle and busy since the start, tokens, tokens per busy s."""

    n_running: int
    n_waiting: int
    waiting_s: float
    busy_s: float
    generated_tokens: int
    tokens_per_s: float


class EngineThread:
    """Serves one TorchEngine from a daemon thread; all methods belong to the event loop that calls them.

    clock: monotonic seconds, for waiting_s and busy_s alone.
    """

    def __init__(self, engine: TorchEngine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._calls: set[_Call] = set()
        self._generating: dict[str, _Call] = {}
        self._dead: EngineError | None = None
        self._closing = False
        self._waiting_s = self._busy_s = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def dead(self) -> EngineError | None:
        """Why nothing can be generated any more; None while all is well."""
        return self._dead

    def load(self) -> EngineLoad:
        """Read the engine's load; a number may be one step old."""
        tokens, busy = self._engine.stats.generated_tokens, self._busy_s
        return EngineLoad(
            n_running=self._engine.n_running,
            n_waiting=self._engine.n_waiting,
            waiting_s=self._waiting_s,
            busy_s=busy,
            generated_tokens=tokens,
            tokens_per_s=tokens / busy if busy > 0 else 0.0,
        )

    async def generate(self, request: Request) -> list[Sample]:
        """Generate the request's n samples; cancelling the awaiting task ends them in the engine.

        Raises PromptTooLong or EngineError as the engine does, and EngineError when it is dead or closed.
        """

        def submit(call: _Call) -> None:
            self._engine.submit(request)
            self._generating[request.id] = call

        future = self._call(submit, answers=False)
        try:
            samples: list[Sample] = await future
        except asyncio.CancelledError:
            self._commands.put(lambda: self._engine.cancel(request.id))
            raise
        return samples

    async def load_weights(self, tensors: Mapping[str, torch.Tensor], epoch: int, version: int) -> None:
        """Swap the weights between two steps. Raises EngineError when they do not fit (the old ones serve on)."""
        await self._call(lambda _: self._engine.load_weights(tensors, epoch, version))

    async def death(self) -> EngineError:
        """Wait until the thread has ended; why it did."""
        await asyncio.to_thread(self._thread.join)
        return self._dead or EngineError("engine: its thread ended")

    async def close(self) -> None:
        """End the thread after the step in flight; what still waits raises EngineError."""
        with self._lock:
            self._closing = True
        self._commands.put(lambda: None)
        await asyncio.to_thread(self._thread.join)

    def _call(self, action: Callable[[_Call], None], *, answers: bool = True) -> asyncio.Future[Any]:
        """Queue an action for the thread; its error, or its end when it answers, settles the future."""
        call = _Call(asyncio.get_running_loop())

        def command() -> None:
            try:
                action(call)
            except EngineError as error:
                self._settle(call, error=error)
            else:
                if answers:
                    self._settle(call)

        with self._lock:
            if self._dead is not None or self._closing:
                raise self._dead or EngineError("engine: it is closed")
            self._calls.add(call)
            self._commands.put(command)
        return call.future

    def _settle(self, call: _Call, result: Any = None, error: EngineError | None = None) -> None:
        with self._lock:
            self._calls.discard(call)
        call.settle(result, error)

    def _run(self) -> None:
        """Obey, step, deliver; until closed or broken."""
        reason = EngineError("engine: it is closed")
        try:
            while not self._closing:
                self._obey()
                if self._closing or self._engine.idle:
                    continue
                started = self._clock()
                completed = self._engine.step()
                self._busy_s += self._clock() - started
                for done in completed:
                    self._settle(self._generating.pop(done.request_id), done.samples)
        except EngineError as error:
            reason = error
        except BaseException as error:
            reason = EngineError(f"engine: its thread broke with {type(error).__name__}: {error}")
            reason.__cause__ = error
        with self._lock:
            self._dead = reason
            orphans, self._calls = self._calls, set()
        for call in orphans:
            call.settle(None, reason)

    def _obey(self) -> None:
        """Carry out the queued commands; sleep until there is one when nothing is to be decoded."""
        if self._engine.idle:
            started = self._clock()
            command = self._commands.get()
            self._waiting_s += self._clock() - started
            command()
        with contextlib.suppress(queue.Empty):
            while True:
                self._commands.get_nowait()()


class _Call:
    """One awaited answer, settled from the engine's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()

    def settle(self, result: Any, error: EngineError | None) -> None:
        """Set the outcome from any thread; a loop that is gone, or a future that was cancelled, needs none."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set, result, error)

    def _set(self, result: Any, error: EngineError | None) -> None:
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
