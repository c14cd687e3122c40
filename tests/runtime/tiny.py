"""Tiny actors and records, run through the real Life against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from messages import ChatMessage, DeadLetter, Rollout, Sampling, Turn
from messages.topics import DEAD, ROLLOUTS, TURNS, Topic
from ops.telemetry import Telemetry, disabled
from runtime.actor import Actor, ActorContext, Delivery, Out, works
from runtime.bus import Bus
from runtime.config import RunConfig
from runtime.life import Life

QUICK_TURNS = dataclasses.replace(TURNS, ack_wait_s=1.0)
"""Turns whose silent consumer is taken for dead after a second; its consumer must be declared afresh."""

RUN_CONFIG = RunConfig.model_validate({"run": {"name": "test"}, "policy": {"path": "nowhere"}, "domains": {"sums": {}}})


def turn(number: int) -> Turn:
    return Turn(
        id=f"t{number}", group_id=f"g{number}", task_id="task", task_seq=1, domain="sums",
        messages=(ChatMessage(role="user", content="1+1="),), n=1, sampling=Sampling(max_tokens=4), admitted_version=0,
    )  # fmt: skip


def rollout(name: str, n_tokens: int = 4) -> Rollout:
    return Rollout(
        id=name, group_id=name, task_id="task", task_seq=1, domain="sums", index=0, n=1,
        prompt_ids=np.arange(3, dtype=np.int32), token_ids=np.arange(n_tokens, dtype=np.int32),
        logprobs=np.full(n_tokens, -0.5, dtype=np.float32), loss_mask=np.ones(n_tokens, dtype=np.uint8),
        versions=np.zeros(n_tokens, dtype=np.int32), epoch=0, temperature=1.0, finish_reason="stop", response="x",
        generator="generator-0", started_s=0.0, finished_s=1.0,
    )  # fmt: skip


def one_rollout(delivery: Delivery[Turn]) -> list[Out]:
    found = delivery.records[0]
    return [Out(ROLLOUTS, [rollout(found.group_id)], ("sums",), group_id=found.group_id)]


class Tiny(Actor):
    """A generator that answers each turn with one rollout, unless told to do something else first."""

    kind = "generator"
    limit = 8

    def __init__(self, context: ActorContext, before: Callable[[Delivery[Turn]], Awaitable[Any]] | None = None) -> None:
        super().__init__(context)
        self.before = before
        self.begun: list[str] = []
        self.deliveries: list[int] = []
        self.done: list[str] = []
        self.most_at_once = 0
        self._at_once = 0

    def concurrency(self, topic: Topic) -> int:
        return self.limit

    @works(TURNS)
    async def on_turn(self, delivery: Delivery[Turn]) -> list[Out]:
        self.begun.append(delivery.records[0].id)
        self.deliveries.append(delivery.deliveries)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if self.before is not None:
                await self.before(delivery)
        finally:
            self._at_once -= 1
        self.done.append(delivery.records[0].id)
        return one_rollout(delivery)


class QuickTiny(Tiny):
    """The same, on turns that are given to another after a second of silence."""

    @works(QUICK_TURNS)
    async def on_turn(self, delivery: Delivery[Turn]) -> list[Out]:
        return await super().on_turn(delivery)


def context(bus: Bus, folder: Path, index: int = 0, kind: str = "generator", telemetry: Telemetry | None = None) -> Any:
    return ActorContext(RUN_CONFIG, bus, telemetry or disabled(), f"{kind}-{index}", index, 1, folder, "host")


@contextlib.asynccontextmanager
async def living(actor: Actor, drain_s: float = 5.0) -> AsyncIterator[Life]:
    """Run an actor as its process would, and drain it at the end."""
    life = Life(actor, drain_s=drain_s)
    task = asyncio.create_task(life.run())
    try:
        yield life
    finally:
        actor.draining.set()
        await asyncio.wait_for(task, 30)


async def until(true: Callable[[], Any], limit_s: float = 20.0) -> None:
    """Wait for something that has no event of its own; ``true`` may be a coroutine function."""
    async with asyncio.timeout(limit_s):
        while True:
            found = true()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.01)


async def letters(bus: Bus, n: int = 1) -> list[DeadLetter]:
    """The dead letters, once there are ``n``."""
    await until(lambda: _stored(bus, DEAD, n))
    return [received.record for received in await bus.read(DEAD)]


async def emptied(bus: Bus, topic: Topic = TURNS) -> None:
    """Wait until every message of a work topic is acknowledged."""
    await until(lambda: _stored(bus, topic, 0))


async def stored(bus: Bus, topic: Topic) -> int:
    return (await bus.stream_state(topic)).messages


async def _stored(bus: Bus, topic: Topic, n: int) -> bool:
    return (await stored(bus, topic)) == n


async def waiting(bus: Bus, topic: Topic) -> list[Any]:
    """The first record of every parcel on a work topic (which only its consumer may pull from)."""
    state = await bus.stream_state(topic)
    found = [await bus.get(topic, seq) for seq in range(state.first_seq, state.last_seq + 1)]
    return [received.record for received in found if received is not None]


async def publish_turns(bus: Bus, *numbers: int) -> None:
    for number in numbers:
        await bus.publish(
            TURNS, [turn(number)], "sums", msg_id=f"turn-{number}", extra_headers={"Busrl-Group": f"g{number}"}
        )
