"""Processes are restarted when they crash, given up when they can not go on, and drained in order; with real ones."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import sys
from pathlib import Path

import nats
import psutil
import pytest

from runtime import supervisor as supervisor_module
from runtime.backoff import Backoff
from runtime.restarts import Restarts
from runtime.server import NatsServer
from runtime.supervisor import ProcessSpec, Supervisor, actor_environment, last_words

LIMIT_S = 20.0

WAITS = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('up'); signal.pause()"
DEAF = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"
)


def quick(name: str) -> Restarts:
    return Restarts(name, windows=((3, 60.0),), backoff=Backoff(0.01, 0.02), rng=random.Random(0))


def spec(tmp_path: Path, program: str, name: str = "worker-0", kind: str = "generator") -> ProcessSpec:
    return ProcessSpec(name, kind, (sys.executable, "-c", program), tmp_path / f"{name}.log")


async def until(condition) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 (what is waited for happens in another process)
            await asyncio.sleep(0.01)


@pytest.fixture
async def supervisor():
    supervisor = Supervisor(restarts=quick)
    yield supervisor
    supervisor.kill()
    await asyncio.gather(*(child.watch for child in supervisor.children.values() if child.watch))


async def test_a_killed_process_is_started_again(supervisor: Supervisor, tmp_path: Path):
    await supervisor.start([spec(tmp_path, WAITS)])
    child = supervisor.children["worker-0"]
    first = child.process.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: child.starts == 2 and child.running)
    assert child.process.pid != first
    assert child.last_end == "killed by SIGKILL"
    assert not supervisor.given_up.done()


async def test_a_crash_loop_gives_the_run_up_with_the_last_words(supervisor: Supervisor, tmp_path: Path):
    await supervisor.start([spec(tmp_path, "raise RuntimeError('no luck')")])
    decision = await asyncio.wait_for(supervisor.given_up, LIMIT_S)
    assert decision.exit_code == 1
    assert "worker-0 is in a crash loop (3 crashes" in decision.why
    assert "RuntimeError: no luck" in decision.why


async def test_bad_input_gives_the_run_up_at_the_first_end(supervisor: Supervisor, tmp_path: Path):
    await supervisor.start([spec(tmp_path, "import sys; print('error: no such model', file=sys.stderr); sys.exit(2)")])
    decision = await asyncio.wait_for(supervisor.given_up, LIMIT_S)
    assert (decision.exit_code, decision.why) == (2, "worker-0: no such model")
    assert supervisor.children["worker-0"].starts == 1


async def test_a_process_that_ended_well_is_not_started_again(supervisor: Supervisor, tmp_path: Path):
    await supervisor.start([spec(tmp_path, "pass")])
    await asyncio.wait_for(supervisor.children["worker-0"].watch, LIMIT_S)
    assert supervisor.children["worker-0"].starts == 1


async def test_kinds_are_drained_one_after_the_other_in_order(supervisor: Supervisor, tmp_path: Path):
    order = tmp_path / "order"
    program = (
        "import signal, sys, time\n"
        f"def end(*_):\n    time.sleep(0.05); open({str(order)!r}, 'a').write(sys.argv[1] + ' '); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True)\nwhile True: signal.pause()"
    )
    kinds = ("learner", "curriculum", "generator")
    specs = [ProcessSpec(kind, kind, (sys.executable, "-c", program, kind), tmp_path / f"{kind}.log") for kind in kinds]
    await supervisor.start(specs)
    await until(lambda: all("up" in spec.log_path.read_text() for spec in specs))
    await supervisor.drain()
    assert order.read_text().split() == ["curriculum", "generator", "learner"]
    assert not any(child.running for child in supervisor.children.values())


async def test_a_process_that_does_not_drain_is_killed_after_the_limit(supervisor: Supervisor, tmp_path: Path):
    stubborn = spec(tmp_path, DEAF)
    await supervisor.start([stubborn])
    await until(lambda: "up" in stubborn.log_path.read_text())
    await supervisor.drain(limit_s=0.2)
    assert supervisor.children["worker-0"].last_end == "killed by SIGKILL"


async def test_a_process_that_waits_for_its_restart_is_not_started_by_a_drain(tmp_path: Path):
    slow = Supervisor(restarts=lambda name: Restarts(name, backoff=Backoff(100.0, 100.0)))
    await slow.start([spec(tmp_path, "raise SystemExit(7)")])
    child = slow.children["worker-0"]
    await until(lambda: child.last_end == "exit code 7")
    await asyncio.wait_for(slow.drain(), LIMIT_S)
    assert child.starts == 1


async def test_what_a_process_left_behind_ends_with_it(supervisor: Supervisor, tmp_path: Path):
    program = (
        "import subprocess, sys\n"
        "left = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print(left.pid, flush=True)"
    )
    forking = spec(tmp_path, program)
    await supervisor.start([forking])
    await asyncio.wait_for(supervisor.children["worker-0"].watch, LIMIT_S)
    pid = int(forking.log_path.read_text())
    await until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


async def test_a_killed_server_comes_back_in_place(supervisor: Supervisor, tmp_path: Path):
    server = NatsServer(tmp_path / "bus")
    await server.start()
    supervisor.keep(server)
    port, pid = server.port, server.pid
    os.kill(pid, signal.SIGKILL)
    await until(lambda: supervisor.server_restarts == 1)
    assert await server.healthy()
    assert (server.port, server.pid != pid) == (port, True)
    supervisor.release_server()
    await server.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
async def test_children_die_with_a_launcher_that_is_killed(tmp_path: Path):
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from runtime.supervisor import ProcessSpec, Supervisor\n"
        "async def main():\n"
        "    supervisor = Supervisor()\n"
        "    sleeper = (sys.executable, '-c', 'import signal; signal.pause()')\n"
        "    await supervisor.start([ProcessSpec('a', 'generator', sleeper, Path(sys.argv[1]))])\n"
        "    print(supervisor.children['a'].process.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    launcher = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path / "a.log"),
        stdout=asyncio.subprocess.PIPE, env=actor_environment(1),
    )  # fmt: skip
    pid = 0
    while not pid:
        line = await asyncio.wait_for(launcher.stdout.readline(), LIMIT_S)
        pid = int(line) if line.strip().isdigit() else 0
    assert psutil.pid_exists(pid)
    launcher.kill()
    await launcher.wait()
    await until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_an_actor_has_bounded_thread_pools_and_our_packages_first():
    environment = actor_environment(3)
    assert {environment[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {"3"}
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(Path(__file__).resolve().parents[2])


def test_the_last_words_of_an_earlier_life_do_not_count(tmp_path: Path):
    path = tmp_path / "a.log"
    path.write_text("error: old\n")
    start = path.stat().st_size
    path.write_text("error: old\nfine\n")
    assert last_words(path) == "old"
    assert last_words(path, start) == "fine"
    assert last_words(tmp_path / "none.log") == ""


def test_the_last_words_of_a_logged_exception_are_its_own(tmp_path: Path):
    path = tmp_path / "a.log"
    path.write_text('{"event": "actor failed", "exception": "Traceback ...\\n  File x\\nValueError: no tensors"}\n')
    assert last_words(path) == "ValueError: no tensors"


async def test_a_server_whose_write_failed_is_started_again_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "HEALTH_EVERY_S", 0.05)
    server = NatsServer(tmp_path / "bus")
    await server.start()
    supervisor = Supervisor()
    try:
        nc = await nats.connect(server.url, reconnect_time_wait=0.05)
        js = nc.jetstream()
        await js.add_stream(name="s", subjects=["s"])
        resource.prlimit(server.pid or 0, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        with pytest.raises(TimeoutError):
            await js.publish("s", b"x" * 5000, timeout=1)
        assert "write error" in await server.write_error()
        supervisor.keep(server)  # its next life has no such limit
        await until(lambda: supervisor.server_restarts == 1)
        assert await server.write_error() == ""
        await js.publish("s", b"x" * 5000, timeout=10)
        await nc.close()
    finally:
        supervisor.release_server()
        await server.stop()
