"""A check that hangs, dies or raises costs one result with its reason; the others go on, and no process is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from verifier_samples import python, task

from actors.verifiers.errors import VerifierError
from actors.verifiers.pool import VerifierPool
from actors.verifiers.result import MAX_LOG_CHARS, CheckResult, bounded
from messages import VerdictStatus

LIMIT_S = 1.0


def pool(workers: int = 1, *, retries: int = 0, time_limit_s: float = LIMIT_S, trust_code: bool = True) -> VerifierPool:
    return VerifierPool(workers, time_limit_s, retries=retries, trust_code=trust_code)


def statuses(results: list[CheckResult]) -> list[str]:
    return [{"passed": "+", "failed": "-", "infrastructure_error": "!"}[result.status] for result in results]


async def test_a_group_is_checked_in_its_order():
    made = task("exact")
    async with pool(time_limit_s=10) as checks:
        results = await checks.check([(made, response) for response in ("42", "41", " 42 ", "", "42")])
    assert statuses(results) == ["+", "-", "+", "-", "+"]
    assert results[0].scores == {"correct": 1.0}
    assert all(result.attempts == 1 and result.seconds < 1 for result in results)


async def test_groups_of_different_tasks_go_through_together():
    async with pool(2, time_limit_s=10) as checks:
        groups = [[(task("exact", str(n)), str(m)) for m in range(4)] for n in range(4)]
        found = await asyncio.gather(*(checks.check(group) for group in groups))
    assert [[result.pass_rate for result in results] for results in found] == [
        [float(n == m) for m in range(4)] for n in range(4)
    ]


@pytest.mark.parametrize(
    ("misbehaviour", "reason"),
    [
        ("hang", f"longer than {LIMIT_S:g} s"),
        ("spin", f"longer than {LIMIT_S:g} s"),
        ("die", "exit code 3"),
        ("eat", "out of memory"),
        ("raise", "RuntimeError: told to raise"),
        ("exit", "SystemExit"),
    ],
)
async def test_a_check_that_misbehaves_is_an_infrastructure_error_and_the_others_go_on(misbehaviour, reason):
    made = python("does_what_it_is_told")
    async with pool() as checks:
        results = await checks.check([(made, response) for response in ("42", misbehaviour, "41", "42")])
    assert statuses(results) == ["+", "!", "-", "+"]
    broken = results[1]
    assert (broken.pass_rate, broken.scores) == (None, {})
    assert reason in broken.log
    assert made.id in broken.log


@pytest.mark.parametrize("name", ["nan", "two", "nothing", "without_correct"])
async def test_what_is_no_score_is_an_infrastructure_error(name):
    async with pool(time_limit_s=10) as checks:
        results = await checks.check([(python(name), "x")])
    assert statuses(results) == ["!"]


async def test_a_check_that_dies_once_passes_on_its_second_attempt_in_a_fresh_process(tmp_path: Path):
    made = python("fails_once")
    async with pool(retries=1, time_limit_s=10) as checks:
        before = checks.pids
        results = await checks.check([(made, str(tmp_path / name)) for name in "abc"])
        assert checks.pids != before
    assert statuses(results) == ["+", "+", "+"]
    assert [result.attempts for result in results] == [2, 2, 2]


async def test_a_check_is_tried_at_most_retries_and_one_times():
    async with pool(retries=2, time_limit_s=10) as checks:
        results = await checks.check([(python("does_what_it_is_told"), "die")])
    assert (statuses(results), results[0].attempts) == (["!"], 3)


@pytest.mark.parametrize("made", [task("exakt"), task("exact", None), task("exact", no_such=1), python("no_such")])
async def test_a_task_that_can_never_be_checked_is_not_tried_again(made):
    async with pool(retries=3, time_limit_s=10) as checks:
        results = await checks.check([(made, "x"), (task("exact"), "42")])
        assert checks.restarts == 0
    assert statuses(results) == ["!", "+"]
    assert results[0].permanent
    assert results[0].attempts == 1


async def test_a_python_verifier_without_trust_is_an_infrastructure_error_that_says_what_to_do():
    async with pool(trust_code=False, time_limit_s=10) as checks:
        results = await checks.check([(python("yes"), "x")])
    assert statuses(results) == ["!"]
    assert "trust_code" in results[0].log


async def test_what_a_plugin_prints_does_not_disturb_the_replies():
    async with pool(time_limit_s=10) as checks:
        assert statuses(await checks.check([(python("talkative"), "x")] * 3)) == ["+", "+", "+"]


async def test_a_process_that_is_killed_while_it_waits_is_replaced():
    async with pool(time_limit_s=10) as checks:
        (pid,) = checks.pids
        process = psutil.Process(pid)
        os.kill(pid, signal.SIGKILL)
        psutil.wait_procs([process], timeout=5)  # holds up the loop, so that the pool can not have noticed
        assert statuses(await checks.check([(task("exact"), "42")])) == ["+"]


async def test_responses_and_answers_of_any_text_travel():
    text = "\ud800 \x00 \U0001f600" * 1000
    async with pool(time_limit_s=10) as checks:
        assert statuses(await checks.check([(task("exact"), text)])) == ["-"]


async def test_closing_leaves_no_process_even_when_a_check_hangs(tmp_path: Path):
    checks = pool(2, time_limit_s=60)
    await checks.start()
    processes = [psutil.Process(pid) for pid in checks.pids]
    hanging = asyncio.create_task(checks.check([(python("leaves_a_child"), str(tmp_path / "child"))]))
    processes.append(psutil.Process(int(await written(tmp_path / "child"))))
    await checks.close()
    with pytest.raises(VerifierError, match="closed"):
        await hanging
    _, left = psutil.wait_procs(processes, timeout=5)
    assert left == []


async def test_a_cancelled_check_kills_its_process_and_frees_its_place(tmp_path: Path):
    async with pool(time_limit_s=60) as checks:
        marker = tmp_path / "child"
        hanging = asyncio.create_task(checks.check([(python("leaves_a_child"), str(marker))]))
        child = psutil.Process(int(await written(marker)))
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        _, left = psutil.wait_procs([child], timeout=5)
        assert left == []
        assert statuses(await checks.check([(task("exact"), "42")])) == ["+"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_check_processes_die_with_their_parent_even_in_the_middle_of_a_check(tmp_path: Path):
    program = """
import asyncio, sys
from verifier_samples import python
from actors.verifiers.pool import VerifierPool
async def main():
    async with VerifierPool(2, 600, trust_code=True) as checks:
        print(*checks.pids, flush=True)
        await checks.check([(python("does_what_it_is_told"), "hang")])
asyncio.run(main())
"""
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ, **paths})
    assert parent.stdout is not None
    processes = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert len(processes) == 2
    _, left = psutil.wait_procs(processes, timeout=10)
    assert left == []


async def test_a_group_of_sixteen_costs_under_a_millisecond_at_best():
    items = [(task("exact"), "42")] * 16
    async with pool(time_limit_s=10) as checks:
        took_s = []
        for _ in range(50):
            started = time.perf_counter()
            await checks.check(items)
            took_s.append(time.perf_counter() - started)
    assert min(took_s) < 1e-3


def test_a_log_is_cut_to_what_a_verdict_may_carry():
    assert len(bounded("x" * 10_000)) == MAX_LOG_CHARS
    assert bounded("short") == "short"


def test_only_a_full_pass_rate_is_passed():
    from actors.verifiers import Check

    assert CheckResult.scored(Check.of(0.99), 0.0).status is VerdictStatus.FAILED
    assert CheckResult.scored(Check.of(1.0), 0.0).status is VerdictStatus.PASSED


async def written(path: Path) -> str:
    """The content of a file, once there is one."""

    def poll() -> str:
        while not (path.exists() and (text := path.read_text())):
            time.sleep(0.01)
        return text

    return await asyncio.to_thread(poll)
