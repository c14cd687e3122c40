"""The processes of a run: started, watched, restarted, drained in order, and never outliving the launcher.

What to do after an end is decided in :mod:`runtime.restarts`; here it is done. A process that can not go on is told
through :attr:`Supervisor.given_up`, once, and the launcher ends the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from runtime.child import dies_with_parent
from runtime.clock import Clock, SystemClock
from runtime.config import ACTOR_KINDS, RunConfig
from runtime.errors import BusError, UserError
from runtime.restarts import EXIT_BAD_INPUT, EXIT_FAILED, Ended, GiveUp, Restart, Restarts, how_it_ended
from runtime.server import NatsServer

DRAIN_LIMIT_S = 45.0
TAIL_BYTES = 16_384
HEALTH_EVERY_S = 5.0

log = structlog.get_logger()


@dataclass(frozen=True)
class ProcessSpec:
    """One process to run: its name, what kind of actor it is, its command, its log, its CPU threads."""

    name: str
    kind: str
    command: tuple[str, ...]
    log_path: Path
    threads: int = 1


def actor_specs(config: RunConfig, folder: Path, logs: Path) -> list[ProcessSpec]:
    """The actor processes of a run, as its file says."""
    return [
        ProcessSpec(
            name=f"{kind}-{index}",
            kind=kind,
            command=(sys.executable, "-m", "runtime.process", kind, "--index", str(index), "--folder", str(folder)),
            log_path=logs / f"{kind}-{index}.log",
            threads=config.section(kind).threads,
        )
        for kind in ACTOR_KINDS
        for index in range(config.section(kind).count)
    ]


def actor_environment(threads: int) -> dict[str, str]:
    """The environment of an actor: bounded thread pools, and this installation's packages before anything else's.

    The current folder stays importable, last, so that a user's own verifier beside the run file is found.
    """
    here = str(Path(__file__).resolve().parent.parent)
    paths = dict.fromkeys([here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), os.getcwd()])
    pools = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {
        **os.environ,
        **dict.fromkeys(pools, str(threads)),
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }


@dataclass
class Child:
    """One supervised process over all its lives."""

    spec: ProcessSpec
    restarts: Restarts
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    last_end: str = ""
    log_start: int = 0
    draining: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    watch: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def running(self) -> bool:
        """Whether it lives now."""
        return self.process is not None and self.process.returncode is None

    @property
    def watched(self) -> bool:
        """Whether it lives or is going to be started again."""
        return self.watch is not None and not self.watch.done()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to what it started."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def end_group(self) -> None:
        """End what it started and left behind."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


class Supervisor:
    """Keeps processes alive until they are drained.

    Args:
        clock: for the crash history.
        restarts: makes the history of a process from its name.
    """

    def __init__(self, clock: Clock | None = None, restarts: Callable[[str], Restarts] = Restarts) -> None:
        self.clock: Clock = clock or SystemClock()
        self.children: dict[str, Child] = {}
        self.given_up: asyncio.Future[GiveUp] = asyncio.get_running_loop().create_future()
        self.server_restarts = 0
        self._restarts = restarts
        self._server_watches: list[asyncio.Task[None]] = []

    async def start(self, specs: Iterable[ProcessSpec]) -> None:
        """Start processes and watch them."""
        for spec in specs:
            child = Child(spec, self._restarts(spec.name))
            self.children[spec.name] = child
            await self._spawn(child)
            child.watch = asyncio.create_task(self._watch(child), name=f"watch-{spec.name}")

    def keep(self, server: NatsServer) -> None:
        """Watch the server too: it is started again in place, so that clients reconnect by themselves."""
        watch = asyncio.create_task(self._watch_server(server), name="watch-nats-server")
        heal = asyncio.create_task(_heal(server), name="heal-nats-server")
        self._server_watches = [watch, heal]

    def release_server(self) -> None:
        """Stop watching the server; its end is then the caller's business."""
        for watch in self._server_watches:
            watch.cancel()

    async def drain(self, kinds: Sequence[str] = ACTOR_KINDS, limit_s: float = DRAIN_LIMIT_S) -> None:
        """Tell kinds to end, one kind after the other in the given order, so that what one still sends is taken."""
        for child in self.children.values():
            if child.spec.kind in kinds:
                child.draining.set()  # none of them is restarted from now on
        for kind in kinds:
            await self._drain_kind([child for child in self.children.values() if child.spec.kind == kind], limit_s)

    def kill(self) -> None:
        """End everything at once."""
        for child in self.children.values():
            child.draining.set()
            child.signal(signal.SIGKILL)

    async def _drain_kind(self, children: list[Child], limit_s: float) -> None:
        watches = [child.watch for child in children if child.watch is not None]
        for child in children:
            child.signal(signal.SIGTERM)
        if not watches:
            return
        _, late = await asyncio.wait(watches, timeout=limit_s)
        for child in children:
            if child.watch in late:
                log.error("did not drain in time, killed", process=child.spec.name, limit_s=limit_s)
                child.signal(signal.SIGKILL)
        if late:
            await asyncio.wait(late)

    async def _spawn(self, child: Child) -> None:
        spec = child.spec
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        with spec.log_path.open("ab") as output:
            child.log_start = os.fstat(output.fileno()).st_size
            child.process = await asyncio.create_subprocess_exec(
                *spec.command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                env=actor_environment(spec.threads), process_group=0, preexec_fn=dies_with_parent(),
            )  # fmt: skip
        child.starts += 1
        log.info("started", process=spec.name, pid=child.process.pid, life=child.starts)

    async def _watch(self, child: Child) -> None:
        while True:
            assert child.process is not None
            code = await child.process.wait()
            child.end_group()
            child.last_end = how_it_ended(code)
            if child.draining.is_set():
                log.info("ended", process=child.spec.name, how=child.last_end)
                return
            words = last_words(child.spec.log_path, child.log_start)
            decision = child.restarts.ended(code, self.clock.monotonic(), words)
            match decision:
                case Ended():
                    log.info("ended", process=child.spec.name, how=child.last_end)
                    return
                case GiveUp():
                    self._give_up(decision)
                    return
                case Restart(after_s):
                    log.warning("crashed", process=child.spec.name, how=child.last_end, said=words, again_s=after_s)
                    if await _is_set_within(child.draining, after_s):
                        return
            await self._spawn(child)

    async def _watch_server(self, server: NatsServer) -> None:
        restarts = self._restarts("nats-server")
        while True:
            code = await server.wait()
            decision = restarts.ended(code or EXIT_FAILED, self.clock.monotonic(), last_words(server.log_path))
            if not isinstance(decision, Restart):
                self._give_up(decision if isinstance(decision, GiveUp) else GiveUp(EXIT_FAILED, "nats-server ended"))
                return
            log.warning("crashed", process="nats-server", how=how_it_ended(code), again_s=decision.after_s)
            await asyncio.sleep(decision.after_s)
            try:
                await server.start()
            except (UserError, BusError) as error:
                self._give_up(GiveUp(EXIT_FAILED, f"nats-server can not be started again: {error}"))
                return
            self.server_restarts += 1
            log.info("started", process="nats-server", pid=server.pid, url=server.url)

    def _give_up(self, decision: GiveUp) -> None:
        log.error("given up", why=decision.why, exit_code=decision.exit_code)
        if not self.given_up.done():
            self.given_up.set_result(decision)


async def _heal(server: NatsServer) -> None:
    """Have the server started again when it stores nothing more, as after a full disk, once there is room."""
    told = ""
    while True:
        await asyncio.sleep(HEALTH_EVERY_S)
        error = await server.write_error() if server.running else ""
        if error and error != told:
            log.error("the bus stores nothing more", error=error, room=server.has_room())
        told = error
        if error and server.has_room():
            server.end()


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def last_words(path: Path, start: int = 0) -> str:
    """The line of a log that says what went wrong: the last ``error:`` line after ``start`` bytes, or the last line."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    for line in reversed(lines):
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    return _said(lines[-1])[:300] if lines else ""


def _said(line: str) -> str:
    """What a log line says: of a JSON line with an exception its last line, of another its event; else the line."""
    try:
        found = json.loads(line)
        text = found.get("exception") or found.get("error") or found.get("event") or line
        return str(text).strip().splitlines()[-1]
    except (ValueError, AttributeError, IndexError):
        return line


__all__ = ["EXIT_BAD_INPUT", "Child", "ProcessSpec", "Supervisor", "actor_environment", "actor_specs", "last_words"]
