"""Where everything of a run is: one folder, one layout, one launcher at a time.

runs/NAME/run.toml         the run file as it was given      resolved.json   what it resolved to
          connection.json  bus address and users (0600)      credentials/    one file per user, for other machines
          bus/             the embedded server's own         logs/           one JSON-lines file per process
          telemetry/       spans and metrics                 history/        steps, evaluations, outcomes, ...
          weights/         broadcast versions                checkpoints/    what a learner resumes from
          summary.json     what came out, in figures         report.md, report.png
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.config import RunConfig
from runtime.errors import UserError
from runtime.runfile import from_json, to_json

LATEST = "latest"


@dataclass(frozen=True)
class Credentials:
    """A user of the bus; None for both on a bus without users."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Connection:
    """How to reach a run's bus, as whom."""

    url: str
    run: str
    users: Mapping[str, Credentials]

    def of(self, kind: str) -> Credentials:
        """The user of an actor kind ("user" for people, "admin" for the launcher); nobody on an open bus."""
        return self.users.get(kind, Credentials())


def read_connection(path: Path) -> Connection:
    """Read ``connection.json``, or a single user's file out of ``credentials/``.

    Raises:
        UserError: it is not there, or not what it should be.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        users = {kind: Credentials(entry["user"], entry["password"]) for kind, entry in found["users"].items()}
        return Connection(str(found["url"]), str(found["run"]), users)
    except FileNotFoundError as error:
        raise UserError(f"there is no {path}; a run writes it when it comes up") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a connection file: {error!r}; expected {{url, run, users}}") from error


@dataclass(frozen=True)
class RunFolder:
    """The layout of one run's folder."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def run_file(self) -> Path:
        """A copy of the run file."""
        return self.path / "run.toml"

    @property
    def resolved(self) -> Path:
        """The configuration with every default filled in."""
        return self.path / "resolved.json"

    @property
    def connection_file(self) -> Path:
        """Bus address and users; readable by its owner only."""
        return self.path / "connection.json"

    @property
    def credentials(self) -> Path:
        """One file per user, to be carried to another machine."""
        return self.path / "credentials"

    @property
    def bus(self) -> Path:
        """The embedded server's own folder."""
        return self.path / "bus"

    @property
    def logs(self) -> Path:
        """One file per process."""
        return self.path / "logs"

    @property
    def telemetry(self) -> Path:
        """Spans and metrics."""
        return self.path / "telemetry"

    @property
    def weights(self) -> Path:
        """Broadcast versions, when they are not in shared memory."""
        return self.path / "weights"

    @property
    def checkpoints(self) -> Path:
        """What a learner resumes from."""
        return self.path / "checkpoints"

    @property
    def history(self) -> Path:
        """Steps, evaluations, outcomes, heartbeats, alerts, dead letters as JSON lines."""
        return self.path / "history"

    @property
    def summary(self) -> Path:
        """What came out, in figures."""
        return self.path / "summary.json"

    def create(self) -> None:
        """Make the folder and its parts; harmless when they are there.

        Raises:
            UserError: they can not be made, or not be written.
        """
        try:
            for folder in (self.path, self.logs, self.telemetry, self.weights, self.checkpoints, self.history):
                folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / ".room", "x" * 4096)
            (self.path / ".room").unlink()
        except OSError as error:
            raise UserError(
                f"the run folder {self.path} can not be written: {error.strerror or error}; "
                "make room there, or set run.dir to another folder"
            ) from error

    def config(self) -> RunConfig:
        """The resolved configuration.

        Raises:
            UserError: there is none.
        """
        try:
            return from_json(self.resolved.read_text())
        except FileNotFoundError as error:
            raise UserError(f"{self.path} is not a run folder: there is no {self.resolved.name} in it") from error

    def write_config(self, config: RunConfig, text: str) -> None:
        """Keep the run file as given and as resolved."""
        self.run_file.write_text(text, encoding="utf-8")
        write_whole(self.resolved, to_json(config))

    def connection(self) -> Connection:
        """How to reach the run's bus.

        Raises:
            UserError: the run was never up.
        """
        return read_connection(self.connection_file)

    def write_connection(self, connection: Connection) -> None:
        """Keep how to reach the bus, for everybody here and one file per user for elsewhere."""
        users = {kind: {"user": who.user, "password": who.password} for kind, who in connection.users.items()}
        document = {"url": connection.url, "run": connection.run, "users": users}
        write_whole(self.connection_file, json.dumps(document, indent=1), secret=True)
        self.credentials.mkdir(mode=0o700, exist_ok=True)
        for kind, entry in users.items():
            alone = {**document, "users": {kind: entry}}
            write_whole(self.credentials / f"{kind}.json", json.dumps(alone, indent=1), secret=True)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Be the run's one launcher for as long as the block lasts.

        Raises:
            UserError: another launcher is.
        """
        descriptor = os.open(self.path / "launcher.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
                raise UserError(
                    f"run {self.name!r} is already up (process {owner}, folder {self.path}); "
                    "stop it first, or give this one another run.name"
                ) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def is_up(self) -> bool:
        """Whether a launcher holds the run now."""
        try:
            with self.hold():
                return False
        except (UserError, OSError):
            return self.path.is_dir()

    def point_latest(self) -> None:
        """Make ``latest`` beside this folder a link to it; skipped where links can not be made."""
        link, fresh = self.path.parent / LATEST, self.path.parent / f".{LATEST}-{os.getpid()}"
        try:
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(self.path.name)
            fresh.replace(link)
        except OSError:
            fresh.unlink(missing_ok=True)


def find_run(name: str | None, folder: str = "runs") -> RunFolder:
    """The run that a person means: a folder, a name below ``folder``, or the latest when None.

    Raises:
        UserError: there is no such run; the message lists what there is.
    """
    candidates = [Path(folder) / LATEST] if name is None else [Path(name), Path(folder) / name]
    for candidate in candidates:
        if (candidate / "resolved.json").is_file():
            return RunFolder(candidate.resolve())
    known = sorted(path.parent.name for path in Path(folder).glob("*/resolved.json") if not path.parent.is_symlink())
    there = (
        f"runs in {folder}/: {', '.join(known)}" if known else f"there is no run in {folder}/; `busrl up` starts one"
    )
    raise UserError(f"there is no run {name!r}; {there}" if name else there)


def write_whole(path: Path, text: str, *, secret: bool = False) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)
