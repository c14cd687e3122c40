"""``busrl up``: a run from its file to its report. Everything is in the run folder, and nothing outlives the launcher.

Stopped by Ctrl-C, by its goal, or by a failure, a run is drained in order and can be continued with the same command:
the bus keeps what was under way, the learner its checkpoint, the folder the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog

from messages import Snapshot
from messages.topics import SNAPSHOTS
from ops import logs, telemetry
from runtime.board import View
from runtime.bus import Bus
from runtime.cancel import cancel_and_wait
from runtime.config import ACTOR_KINDS, EMBEDDED, RunConfig
from runtime.declare import declare
from runtime.display import Display
from runtime.errors import BusError, ConfigError, UserError
from runtime.facts import Facts
from runtime.permissions import ADMIN, BusUser, users
from runtime.recorder import Recorder
from runtime.restarts import EXIT_DONE, EXIT_FAILED, GiveUp
from runtime.runfile import to_json
from runtime.runfolder import Connection, Credentials, RunFolder, write_whole
from runtime.seeding import publish_domains
from runtime.server import NatsServer
from runtime.stoprule import Phase, StopRule
from runtime.supervisor import Supervisor, actor_specs

TICK_S = 0.25
PRODUCERS = ("curriculum", "generator", "verifier", "reward", "replay")
"""Kinds that have nothing left to do when the last step is done."""
TASK_READERS = ("curriculum", "evaluator")
"""Kinds that look at the tasks when they start."""

log = structlog.get_logger()


class Launcher:
    """One run, up.

    Args:
        config: the run file, checked and resolved.
        run_file: where it was read from; a copy is kept.
        display: where people see what happens.
    """

    def __init__(self, config: RunConfig, run_file: Path, display: Display) -> None:
        self.config = config
        self.run_file = run_file
        self.display = display
        self.folder = RunFolder(Path(config.run.dir).resolve() / config.run.name)
        self.facts = Facts()
        self.because = ""
        self.phase = "starting"
        self._started = time.monotonic()
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._server: NatsServer | None = None
        self._supervisor: Supervisor | None = None
        self._url = ""

    async def run(self) -> int:
        """Bring the run up, keep it up, and bring it down; returns the exit code.

        Raises:
            UserError: it can not start as the run file says.
            BusError: the bus does not do what it should.
        """
        refuse_other_run(self.folder, self.config)
        self.folder.create()
        with self.folder.hold():
            self._configure_logs()
            self.folder.write_config(self.config, self.run_file.read_text(encoding="utf-8"))
            self._listen_to_signals()
            code = await self._with_bus()
        headline = self._write_report(code)
        self.display.last_words(self.folder, self.run_file, headline, self.because, code)
        return code

    def stop(self) -> None:
        """Ask for a drain; asked twice, everything is killed."""
        if self._stop.is_set():
            self._kill.set()
            if self._supervisor is not None:
                self._supervisor.kill()
        self._stop.set()

    # --- the way up -------------------------------------------------------------------------------------------------

    async def _with_bus(self) -> int:
        async with self._bus() as bus:
            self.folder.point_latest()  # not before: a run that does not come up is not what people mean
            self._supervisor = Supervisor()
            if self._server is not None:
                self._supervisor.keep(self._server)
            recorder = Recorder(bus, self.folder.history, self.facts)
            await recorder.start()
            ticking = asyncio.create_task(self._show(), name="display")
            try:
                await recorder.catch_up()
                code = await self._until_done(bus, self._supervisor)
                await self._catch_up(recorder)
            finally:
                self._supervisor.kill()
                await self._supervisor.drain()
                self._supervisor.release_server()
                await cancel_and_wait([ticking])
                await recorder.stop()
                self.display.close(self.facts, self._view())
        return code

    @contextlib.asynccontextmanager
    async def _bus(self) -> AsyncIterator[Bus]:
        """The bus, reachable and with every stream on it."""
        logins = self._logins()
        if self.config.bus.url == EMBEDDED:
            self._server = self._embedded(logins)
            self._say("starting the bus")
            await self._server.start()
            self._url = self._server.url
        else:
            self._url = self.config.bus.url
        try:
            named = {login.kind: Credentials(login.user, login.password) for login in logins}
            if self.config.bus.url != EMBEDDED:
                named = read_external_credentials(self.config.bus.credentials)
            self.folder.write_connection(Connection(self._url, self.config.run.name, named))
            admin = named.get(ADMIN, Credentials())
            bus = await Bus.connect(
                self._url, self.config.run.name, user=admin.user, password=admin.password, name="launcher"
            )
            try:
                await declare(bus)
                yield bus
            finally:
                await bus.close()
        finally:
            if self._server is not None:
                await self._server.stop()

    def _logins(self) -> list[BusUser]:
        """Users of the embedded server; those of an earlier launcher keep their passwords."""
        made = users(self.config.run.name)
        if not self.folder.connection_file.exists():
            return made
        known = self.folder.connection().users
        kept = []
        for login in made:
            password = known[login.kind].password if login.kind in known else None
            kept.append(replace(login, password=password) if password else login)
        return kept

    def _embedded(self, logins: list[BusUser]) -> NatsServer:
        bus = self.config.bus
        server = NatsServer(
            self.folder.bus,
            self.config.run.name,
            authorization={"users": [login.authorization() for login in logins]},
            port=bus.port,
            store_max_bytes=bus.store_max_bytes,
            sync=bus.sync,
        )
        if not bus.port:
            server.port = free_earlier_port(self.folder)
        return server

    async def _publish(self, bus: Bus) -> None:
        """What the actors find on the bus: the resolved run file and the tasks that the run file names."""
        snapshot = Snapshot(kind="run", saved_s=time.time(), state=to_json(self.config))
        await bus.publish(SNAPSHOTS, [snapshot], "run")
        if any(domain.source or domain.files or domain.eval_files for domain in self.config.domains.values()):
            marker = self.folder.bus / "published" if self.config.bus.url == EMBEDDED else None
            async with self._traced(bus):
                await publish_domains(bus, self.config, self._say, self.display.warn, marker)

    @contextlib.asynccontextmanager
    async def _traced(self, bus: Bus) -> AsyncIterator[None]:
        """A task's trace begins with its publication."""
        settings = self.config.telemetry
        bus.telemetry = telemetry.setup(
            "launcher",
            instance="launcher-0",
            run=self.config.run.name,
            folder=self.folder.telemetry,
            traces=settings.traces,
            metrics=False,
            sample_ratio=settings.sample_ratio,
        )
        try:
            yield
        finally:
            ended, bus.telemetry = bus.telemetry, telemetry.disabled()
            await asyncio.to_thread(ended.shutdown)

    # --- while it is up ---------------------------------------------------------------------------------------------

    async def _start(self, bus: Bus, supervisor: Supervisor) -> None:
        """Start the actors and publish the tasks meanwhile; who reads tasks at its start comes after them."""
        specs = actor_specs(self.config, self.folder.path, self.folder.logs)
        self._say("starting the actors")
        await supervisor.start(spec for spec in specs if spec.kind not in TASK_READERS)
        publishing = asyncio.create_task(self._publish(bus), name="publish")
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        watched: set[asyncio.Future[Any]] = {publishing, stopping, supervisor.given_up}
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if publishing.done():
                publishing.result()
                await supervisor.start(spec for spec in specs if spec.kind in TASK_READERS)
        finally:
            await cancel_and_wait([publishing, stopping])

    async def _until_done(self, bus: Bus, supervisor: Supervisor) -> int:
        rule = StopRule(self.config)
        if rule.phase(self.facts, 0.0) is Phase.DONE:
            self.because = rule.because
            return EXIT_DONE
        await self._start(bus, supervisor)
        draining: asyncio.Task[None] | None = None
        while not self._stop.is_set() and not supervisor.given_up.done():
            phase = rule.phase(self.facts, self._elapsed_s())
            self.phase = phase.value
            if phase is Phase.DONE:
                break
            if phase is Phase.EVALUATING and draining is None:
                draining = asyncio.create_task(supervisor.drain(PRODUCERS), name="drain-producers")
            if all(not child.watched for child in supervisor.children.values()):
                rule.because = "every actor was drained"
                break
            await asyncio.sleep(TICK_S)
        return await self._bring_down(supervisor, rule, draining)

    async def _bring_down(self, supervisor: Supervisor, rule: StopRule, draining: asyncio.Task[None] | None) -> int:
        given_up = supervisor.given_up.result() if supervisor.given_up.done() else None
        self.because = self._why(given_up, rule)
        self.phase = "draining"
        log.info("draining", because=self.because)
        if draining is not None:
            await draining
        if self._server is not None and not self._server.running:
            supervisor.kill()  # nothing can be drained over a bus that is gone
        await supervisor.drain()
        self.phase = "stopped"
        if self._kill.is_set():
            self.because = "killed by a second Ctrl-C"
            return EXIT_FAILED
        return given_up.exit_code if given_up else EXIT_DONE

    def _why(self, given_up: GiveUp | None, rule: StopRule) -> str:
        if given_up is not None:
            return given_up.why
        return "stopped by you" if self._stop.is_set() else rule.because

    async def _catch_up(self, recorder: Recorder) -> None:
        if self._kill.is_set():
            return
        try:
            await recorder.catch_up(timeout_s=15)
        except BusError as error:
            log.error("the last records were not read", error=str(error))

    async def _show(self) -> None:
        while True:
            self.display.update(self.facts, self._view())
            await asyncio.sleep(TICK_S)

    def _view(self) -> View:
        children = self._supervisor.children if self._supervisor is not None else {}
        return View(
            run=self.config.run.name,
            now_s=time.time(),
            elapsed_s=self._elapsed_s(),
            max_steps=self.config.run.max_steps,
            max_lag=self.config.training.max_lag,
            phase=self.phase,
            url=self._url,
            restarts={name: child.starts - 1 for name, child in children.items() if child.starts > 1},
            note="Ctrl-C again kills everything"
            if self._stop.is_set()
            else "Ctrl-C drains; the same command continues",
        )

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def _say(self, what: str) -> None:
        self.phase = what
        log.info(what)

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)

    def _configure_logs(self) -> None:
        stream = None if self.display.live else sys.stderr
        logs.setup(
            run=self.config.run.name,
            actor="launcher",
            instance="launcher-0",
            file=self.folder.logs / "launcher-0.log",
            stream=stream,
        )

    def _write_report(self, code: int) -> str:
        """The report, and its headline. It is a by-product: that it can not be drawn makes no run a failure."""
        children = self._supervisor.children.values() if self._supervisor is not None else ()
        ending = {
            "run": self.config.run.name,
            "seed": self.config.run.seed,
            "ended_because": self.because,
            "exit_code": code,
            "wall_s": round(self._elapsed_s(), 1),
            "restarts": sum(max(0, child.starts - 1) for child in children),
            "server_restarts": self._supervisor.server_restarts if self._supervisor is not None else 0,
            "alerts": self.facts.n_alerts,
        }
        try:
            write_whole(self.folder.summary, json.dumps(ending, indent=2) + "\n")
            report = importlib.import_module("ops.report").write(self.folder.path)
        except Exception as error:
            log.exception("no report")
            self.display.warn(f"the report could not be written: {error}")
            return ""
        return str(report.headline)


def refuse_other_run(folder: RunFolder, config: RunConfig) -> None:
    """Refuse to continue a run as something that it is not.

    Raises:
        ConfigError: the folder holds a run with another policy, seed, group size or bus.
    """
    if not folder.resolved.exists():
        return
    earlier = folder.config()
    fixed = {
        "policy.path": (earlier.policy.path, config.policy.path),
        "run.seed": (earlier.run.seed, config.run.seed),
        "training.group_size": (earlier.training.group_size, config.training.group_size),
        "bus.url": (earlier.bus.url, config.bus.url),
    }
    for key, (then, now) in fixed.items():
        if then != now:
            raise ConfigError(
                f"{folder.path} holds a run with {key} = {then!r}, and this run file says {now!r}; "
                "give this run another name (run.name or --name), or remove the folder"
            )


def read_external_credentials(path: str | None) -> dict[str, Credentials]:
    """Users of an external bus from its JSON file, ``{kind: {user, password}}``; none without a file.

    Raises:
        UserError: the file is not that.
    """
    if path is None:
        return {}
    try:
        found = json.loads(Path(path).read_text())
        entries = found.get("users", found)
        return {kind: Credentials(entry["user"], entry["password"]) for kind, entry in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"bus.credentials: {path} is not JSON of the form {{kind: {{user, password}}}} "
            f"(kinds: {', '.join((*ACTOR_KINDS, 'user', ADMIN))}): {error!r}"
        ) from error


def free_earlier_port(folder: RunFolder) -> int:
    """The port that the run had before, so that actors elsewhere find it again; 0 when it is taken or there is none."""
    try:
        port = urlsplit(folder.connection().url).port or 0
    except UserError:
        return 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port
