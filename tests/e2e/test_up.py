"""A run as a person has it: ``busrl up``, looked at from other shells, stopped by Ctrl-C, continued, and taken out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.policy.tiny import write_tiny_policy

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300.0
RUN_FILE = """
[run]
name = "letters"
final_evaluation_s = 60.0
[policy]
path = "policy"
[training]
group_size = 8
groups_per_batch = 8
[sampling]
max_tokens = 3
[domains.letters]
files = ["train.jsonl"]
eval_files = ["heldout.jsonl"]
verifier = { kind = "regex", options = { pattern = "^[a-z]", full = false } }
[learner]
lr = 2e-4
checkpoint = { every_steps = 5 }
[evaluator]
every_versions = 50
samples_per_task = 2
full_tasks_per_domain = 20
"""


class Shell:
    """A folder with a run file, and ``busrl`` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
        self.up_process: subprocess.Popen[str] | None = None

    def busrl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(*arguments), cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip

    def up(self, *arguments: str) -> subprocess.Popen[str]:
        self.up_process = subprocess.Popen(
            self._command("up", "run.toml", "--plain", *arguments), cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=(self.folder / "up.log").open("a"),
        )  # fmt: skip
        return self.up_process

    def history(self, name: str) -> list[dict]:
        """What has been recorded so far, such as ``steps``; a line that is being written is left out."""
        path = self.folder / "runs" / "letters" / "history" / f"{name}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds of the run."""
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert self.up_process is not None
            assert self.up_process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()[-2000:]
            time.sleep(0.1)

    def end(self) -> tuple[int, str]:
        """Wait for ``busrl up`` to end; its exit code and last words."""
        assert self.up_process is not None
        words, _ = self.up_process.communicate(timeout=LIMIT_S)
        return self.up_process.returncode, words

    def log(self) -> str:
        return (self.folder / "up.log").read_text()

    @staticmethod
    def _command(*arguments: str) -> list[str]:
        return [sys.executable, "-c", "from runtime.cli import main; main()", *arguments]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    write_tiny_policy(tmp_path / "policy", seed=1)
    (tmp_path / "run.toml").write_text(RUN_FILE)
    for name in ("train", "heldout"):
        lines = [json.dumps({"id": f"{name}-{i}", "prompt": f"{name[0]}{i}="}) for i in range(20)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    shell = Shell(tmp_path)
    yield shell
    if shell.up_process is not None and shell.up_process.poll() is None:
        shell.up_process.kill()
        shell.up_process.wait()


def test_a_run_comes_up_is_watched_stopped_continued_and_taken_out(shell: Shell):
    shell.up()
    stopped_at = watch_it_and_stop_it(shell)
    continued(shell, goal=stopped_at + 3)
    taken_out(shell)


def watch_it_and_stop_it(shell: Shell) -> int:
    shell.until(lambda: len(shell.history("steps")) >= 2)
    assert "run 'letters' is already up" in shell.busrl("up", "run.toml", "--plain").stderr
    steps = [json.loads(line) for line in shell.busrl("tail", "steps", "--json", "-n", "2").stdout.splitlines()]
    assert [step["batch_number"] for step in steps] == sorted(step["batch_number"] for step in steps)
    assert shell.busrl("dead", "list").stdout == "there are no dead letters\n"
    again = shell.busrl("publish", "train.jsonl", "--domain", "letters", "--verifier", "exact")
    assert again.returncode == 2  # the same ids with another verifier are other tasks
    status = json.loads(shell.busrl("status", "--json").stdout)
    assert status["up"] is True
    assert status["version"] >= 2
    assert status["law_closes"] is True
    assert "bound 2" in shell.busrl("status").stdout

    assert shell.up_process is not None
    shell.up_process.send_signal(signal.SIGINT)
    code, words = shell.end()
    assert code == 0, shell.log()
    assert "run letters ended: stopped by you" in words
    summary = json.loads((shell.folder / "runs" / "letters" / "summary.json").read_text())
    assert summary["rollouts"]["law_closes"] is True
    version: int = summary["weight_versions"]
    assert version >= 2
    return version


def continued(shell: Shell, goal: int) -> None:
    shell.up("--max-steps", str(goal))
    code, words = shell.end()
    assert code == 0, shell.log()
    assert "is reached and evaluated" in words
    run = shell.folder / "runs" / "latest"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["weight_versions"] >= goal
    assert summary["rollouts"]["law_closes"] is True
    assert len({step["epoch"] for step in shell.history("steps")}) == 2, "it went on with the learner's next epoch"
    assert (run / "report.md").exists()
    assert f"weight version {summary['weight_versions']}" in shell.busrl("status").stdout


def taken_out(shell: Shell) -> None:
    done = shell.busrl("export", "letters", "--to", "better")
    assert done.returncode == 0, done.stderr
    load = (
        "import transformers as t; t.AutoModelForCausalLM.from_pretrained('better'); "
        "t.AutoTokenizer.from_pretrained('better')"
    )
    subprocess.run([sys.executable, "-c", load], cwd=shell.folder, check=True, capture_output=True, timeout=LIMIT_S)


def test_a_run_whose_actor_refuses_its_input_ends_with_that_line(shell: Shell):
    (shell.folder / "policy" / "model.safetensors").write_bytes(b"no tensors")
    shell.up()
    code, words = shell.end()
    assert code == 2, shell.log()
    assert "run letters FAILED: " in words
    assert "policy" in words.splitlines()[0]


def test_a_launcher_that_is_killed_takes_its_processes_along(shell: Shell):
    launcher = shell.up()
    shell.until(lambda: len(shell.history("heartbeats")) >= 7)
    lines = (shell.folder / "runs" / "letters" / "logs" / "launcher-0.log").read_text().splitlines()
    pids = [found["pid"] for line in lines if (found := json.loads(line))["event"] == "started"]
    assert len(pids) == 7
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + LIMIT_S
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
