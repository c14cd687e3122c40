"""A whole run of real processes on a real server, for tests: brought up, watched from the bus, hurt, and drained."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actors.policy.tiny import write_tiny_policy
from messages import ChatMessage, Task, VerifierSpec, derive
from messages.topics import HEARTBEATS, TASKS, Topic
from ops import telemetry
from runtime.bus import Bus
from runtime.declare import declare
from runtime.permissions import ADMIN, users
from runtime.runfile import parse
from runtime.runfolder import Connection, Credentials, RunFolder
from runtime.server import NatsServer
from runtime.supervisor import Child, Supervisor, actor_specs
from runtime.weights import weights_folder

RUN_FILE = """
[run]
name = "{name}"
dir = "{folder}"
max_steps = {max_steps}
[policy]
path = "policy"
[training]
group_size = 8
groups_per_batch = 8
max_lag = 2
[sampling]
max_tokens = 3
[domains.letters]
[domains.digits]
[learner]
lr = 2e-3
warmup_steps = 2
checkpoint = {{ every_steps = {every_steps} }}
[generator]
max_sequences = 64
[evaluator]
every_versions = 10
tasks_per_domain = 16
full_tasks_per_domain = 40
samples_per_task = 4
[telemetry]
interval_s = 1.0
"""

WANTED = {"letters": "^[a-z]", "digits": "^[0-9]"}
"""What a good response begins with, per domain. A policy that knows nothing gets one in four, and one in ten, right."""


def tasks(split: str, n: int) -> list[Task]:
    """Tasks whose answers a random policy stumbles on: begin with a small letter, or with a digit."""
    return [
        Task(
            id=f"{domain}-{split}-{i}",
            domain=domain,
            messages=(ChatMessage(role="user", content=f"{domain[0]}{split[0]}{i % 10}"),),
            verifier=VerifierSpec(kind="regex", options={"pattern": pattern, "full": False}),
            split=split,
        )
        for domain, pattern in WANTED.items()
        for i in range(n)
    ]


@dataclass
class WholeRun:
    """The run's folder, bus and processes."""

    folder: RunFolder
    server: NatsServer
    bus: Bus
    supervisor: Supervisor
    max_steps: int
    told: list[str] = field(default_factory=list)

    def child(self, kind: str) -> Child:
        """The first process of a kind."""
        return self.supervisor.children[f"{kind}-0"]

    def kill(self, kind: str) -> float:
        """``kill -9`` the first process of a kind and all that it started; returns when (monotonic)."""
        self.child(kind).signal(signal.SIGKILL)
        return time.monotonic()

    async def kill_server(self) -> None:
        """``kill -9`` the nats-server and wait for its next life."""
        assert self.server.pid is not None
        before = self.supervisor.server_restarts
        os.kill(self.server.pid, signal.SIGKILL)
        while self.supervisor.server_restarts == before:  # noqa: ASYNC110 the supervisor has no event for it
            await asyncio.sleep(0.02)

    async def records(self, topic: Topic) -> list[Any]:
        """Every record that a topic has now."""
        return [record for received in await self.bus.read(topic) for record in received.records]

    async def until(self, topic: Topic, holds: Callable[[Any], bool], start: str | int = "all") -> Any:
        """The first record of a topic for which something holds. The test's own time limit bounds the wait."""
        async with contextlib.aclosing(self.bus.follow(topic, start)) as parcels:
            async for received in parcels:
                for record in received.records:
                    if holds(record):
                        return record
        raise AssertionError("a followed topic never ends")

    async def until_alive(self, kind: str, since_s: float) -> None:
        """Wait for the heartbeat of a life that began after ``since_s`` (Unix time) and is at work."""
        await self.until(
            HEARTBEATS, lambda beat: beat.kind == kind and beat.started_s > since_s and beat.state.value == "running"
        )

    async def drain(self) -> None:
        """Bring every process down in order, as the launcher does."""
        await self.supervisor.drain()

    def exit_codes(self) -> dict[str, int | None]:
        """How each process ended."""
        return {name: c.process.returncode if c.process else None for name, c in self.supervisor.children.items()}

    def last_words(self) -> str:
        """The tail of every log, for the report of a failed test."""
        tails = []
        for path in sorted(self.folder.logs.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()
            tails.append(f"--- {path.name}\n" + "\n".join(lines[-5:]))
        return "\n".join(tails)


@contextlib.asynccontextmanager
async def whole_run(
    folder: Path, *, max_steps: int, every_steps: int = 4, run_file: str = RUN_FILE, published: Sequence[Task] = ()
) -> AsyncIterator[WholeRun]:
    """A run that is up: server, tasks, and every actor under supervision. Nothing of it outlives the block."""
    name = f"e2e-{derive(str(folder))[:8]}"
    write_tiny_policy(folder / "policy", source="arithmetic")
    text = run_file.format(name=name, folder=folder, max_steps=max_steps, every_steps=every_steps)
    config = parse(text, "run.toml", folder)
    run_folder = RunFolder(folder / name)
    run_folder.create()
    run_folder.write_config(config, text)
    made = users(name)
    server = NatsServer(run_folder.bus, name, authorization={"users": [user.authorization() for user in made]})
    await server.start()
    supervisor = Supervisor()
    try:
        logins = {user.kind: Credentials(user.user, user.password) for user in made}
        run_folder.write_connection(Connection(server.url, name, logins))
        admin = logins[ADMIN]
        bus = await Bus.connect(server.url, name, user=admin.user, password=admin.password, name="test", timeout_s=10)
        try:
            await declare(bus)
            await publish(bus, run_folder, published or (*tasks("train", 40), *tasks("eval", 40)))
            supervisor.keep(server)
            await supervisor.start(actor_specs(config, run_folder.path, run_folder.logs))
            yield WholeRun(run_folder, server, bus, supervisor, max_steps)
        finally:
            supervisor.kill()
            await supervisor.drain()
            supervisor.release_server()
            await bus.close()
    finally:
        await server.stop()
        shutil.rmtree(weights_folder(run_folder.path), ignore_errors=True)  # it may lie in shared memory


async def publish(bus: Bus, folder: RunFolder, some: Sequence[Task]) -> None:
    """Publish tasks as a user does, traced from here on."""
    bus.telemetry = telemetry.setup("user", instance="user-0", run=bus.run, folder=folder.telemetry, metrics=False)
    for task in some:
        await bus.publish(TASKS, [task], task.split, task.domain, derive(task.id))
    await asyncio.to_thread(bus.telemetry.shutdown)
    bus.telemetry = telemetry.disabled()


async def ended_within(work: asyncio.Task[Any], run: WholeRun, limit_s: float) -> Any:
    """The result of some waiting; where it takes too long or the supervisor gives up, what the processes last said."""
    given_up = asyncio.ensure_future(asyncio.shield(run.supervisor.given_up))
    done, _ = await asyncio.wait({work, given_up}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    if work in done:
        given_up.cancel()
        return work.result()
    work.cancel()
    why = run.supervisor.given_up.result().why if given_up in done else f"not within {limit_s:.0f} s"
    given_up.cancel()
    raise AssertionError(f"{work.get_name()}: {why}\n{run.last_words()}")
