"""The command line as a person calls it: help that is quick, and bad input that is one line and exit code 2."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime.cli.app import run
from runtime.runfolder import Connection, Credentials, RunFolder

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    "demo", "init", "check", "config", "up", "actor", "control", "status", "top", "tail", "publish", "sft", "export",
    "eval", "doctor", "bench", "dead list", "dead show", "dead replay", "model fetch",
)  # fmt: skip
RUN_FILE = '[run]\nname = "one"\n[policy]\npath = "policy"\n[domains.sums]\n'


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    returncode: int
    stdout: str
    stderr: str


def busrl(*arguments: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> Done:
    """Run a command as a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "100", **(env or {})}
    program = "from runtime.cli import main; main()"
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=60, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def here(*arguments: str, cwd: Path = ROOT) -> Done:
    """Run a command in this process, which is ten times quicker; the way from arguments to exit code is the same."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(list(arguments))
    return Done(code, out.getvalue(), err.getvalue())


def refused(*arguments: str, cwd: Path, process: bool = False) -> str:
    """What a command says that refuses its input: one line, nothing else, and the right exit code."""
    done = (busrl if process else here)(*arguments, cwd=cwd)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr.removeprefix("error: ").strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    (tmp_path / "run.toml").write_text(RUN_FILE)
    return tmp_path


@pytest.fixture
def ended_run(folder: Path) -> RunFolder:
    """A run that has been, and is not up."""
    from runtime.runfile import load

    ended = RunFolder(folder / "runs" / "one")
    ended.create()
    ended.write_config(load(folder / "run.toml"), RUN_FILE)
    ended.write_connection(Connection("nats://127.0.0.1:9", "one", {"user": Credentials("user", "secret")}))
    ended.point_latest()
    return ended


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples_and_exit_codes(command: str):
    done = here(*command.split(), "--help")
    assert done.returncode == 0
    assert "Examples:" in done.stdout
    assert f"busrl {command}" in done.stdout
    assert "Exit codes: 0 done" in done.stdout


def test_help_lists_every_command_and_imports_nothing_heavy():
    program = (
        "import sys; from runtime.cli.app import run; code = run(['--help']); "
        "print(code, [name for name in ('torch', 'nats', 'pydantic', 'numpy', 'opentelemetry') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip().endswith("0 []")
    for command in COMMANDS:
        assert command.split()[0] in done.stdout


def test_a_written_run_file_is_toml_and_explains_itself(folder: Path):
    done = busrl("init", "mine.toml", "--policy", "policy", cwd=folder)
    assert done.returncode == 0
    text = (folder / "mine.toml").read_text()
    assert tomllib.loads(text)["run"]["name"] == "mine"
    assert text.count("#") > 10


def test_a_written_run_file_checks(folder: Path):
    here("init", "mine.toml", cwd=folder)
    done = busrl("check", "mine.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "[training]" in done.stdout
    assert "mine.toml is right" in done.stdout


def test_a_run_file_that_is_there_is_not_overwritten_unless_told(folder: Path):
    assert "run.toml exists" in refused("init", cwd=folder)
    assert here("init", "--force", cwd=folder).returncode == 0


def test_what_check_prints_as_json_is_what_a_run_resolves_to(folder: Path):
    done = here("check", "run.toml", "--json", cwd=folder)
    resolved = json.loads(done.stdout)
    assert resolved["policy"]["path"] == str(folder / "policy")
    assert resolved["training"]["max_lag"] == 2


def test_what_check_prints_is_a_run_file_again(folder: Path):
    printed = here("check", "run.toml", cwd=folder).stdout
    text = printed[: printed.index("\nrun.toml is right")]
    (folder / "again.toml").write_text(text)
    first, second = (
        json.loads(here("check", name, "--json", cwd=folder).stdout) for name in ("run.toml", "again.toml")
    )
    assert first == second


def test_every_key_is_explained():
    done = here("config")
    for word in ("[training]", "max_lag = 2", "[domains.NAME.source]", "[learner]", "path = <required>"):
        assert word in done.stdout
    assert "[learner]" not in here("config", "training").stdout
    assert here("config", "training", "--markdown").stdout.startswith("## [training]")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("check none.toml", "none.toml: there is no such file"),
        ("up none.toml", "none.toml: there is no such file"),
        ("check", "Missing argument 'FILE'"),
        ("chekc run.toml", "No such command"),
        ("up run.toml --max-steps many", "should be a valid integer"),
        ("up run.toml --name Two", "--name 'Two' is not a valid name"),
        ("check run.toml --nothing", "No such option"),
        ("config trainig", "there is no section [trainig]"),
        ("status", "there is no run in runs/"),
        ("status --run two", "there is no run 'two'"),
        ("tail nothing", "there is no topic 'nothing'"),
        ("tail blobs", "there is no topic 'blobs' to read"),
        ("dead replay", "name one dead letter, or use --all"),
        ("dead replay x --all", "name one dead letter, or use --all"),
        ("dead replay x --topic turns", "do not go with one dead letter"),
        ("dead replay --all --topic nothing", "there is no topic 'nothing'"),
        ("dead replay --all --reason sad", "there is no reason 'sad'; reasons: invalid"),
        ("control stop", "there is no order 'stop'"),
        ("control pause horse", "there is no actor 'horse'"),
        ("actor horse", "there is no actor 'horse'"),
        ("actor generator --bus nats://127.0.0.1:9", "needs --run NAME"),
        ("actor generator --credentials none.json", "there is no none.json"),
        ("export", "there is no run in runs/"),
        ("eval nowhere --source arithmetic", "nowhere is not a Hugging Face model folder"),
        ("eval policy", "exactly one of --source NAME, --file FILE and --run NAME"),
        ("model fetch gpt", "there is no model 'gpt'"),
        ("sft none.toml", "none.toml: there is no such file"),
        ("bench nothing", "there is no benchmark 'nothing'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder: Path, arguments: str, expected: str):
    assert expected in refused(*arguments.split(), cwd=folder)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (RUN_FILE + "[training]\nmax_lagg = 1\n", "unknown key training.max_lagg: did you mean max_lag?"),
        (RUN_FILE + '[training]\nmax_lag = "two"\n', 'training.max_lag: found "two"'),
        (RUN_FILE.replace('"policy"', '"nowhere"'), "policy.path: there is no folder"),
        (RUN_FILE + 'verifier = { kind = "none" }\n', "domains.sums.verifier.kind: found 'none'"),
        (RUN_FILE + '[bus]\nurl = "nats://a:1"\nport = 3\n', "bus.port: excludes bus.url"),
        ("not toml", "is not TOML"),
    ],
)
@pytest.mark.parametrize("command", ["check", "up"])
def test_a_bad_run_file_is_refused_before_anything_starts(folder: Path, command: str, text: str, expected: str):
    (folder / "bad.toml").write_text(text)
    assert expected in refused(command, "bad.toml", cwd=folder)
    assert not (folder / "runs").exists()


def test_a_bus_that_does_not_answer_is_one_line(folder: Path):
    message = refused("status", "--bus", "nats://127.0.0.1:9", "--run", "one", cwd=folder, process=True)
    assert message.startswith("no bus at nats://127.0.0.1:9")


@pytest.mark.parametrize("command", ["tail steps", "dead list", "control pause", "top"])
def test_a_run_that_is_not_up_is_named(ended_run: RunFolder, command: str):
    assert "run 'one' is not up" in refused(*command.split(), cwd=ended_run.path.parents[1])


def test_the_status_of_an_ended_run_is_its_summary(ended_run: RunFolder):
    ended_run.summary.write_text(json.dumps({"ended_because": "it was done", "weight_versions": 7}))
    cwd = ended_run.path.parents[1]
    assert "it ended because: it was done" in here("status", cwd=cwd).stdout
    assert json.loads(here("status", "--json", cwd=cwd).stdout)["weight_versions"] == 7


def test_a_run_without_a_checkpoint_can_not_be_exported(ended_run: RunFolder):
    assert "has no checkpoint yet" in refused("export", cwd=ended_run.path.parents[1])


def test_credentials_of_another_kind_are_refused(ended_run: RunFolder):
    file = ended_run.credentials / "user.json"
    message = refused("actor", "generator", "--credentials", str(file), cwd=ended_run.path.parents[1])
    assert "has no credentials of a generator, only of user" in message


def test_credentials_are_readable_by_their_owner_only(ended_run: RunFolder):
    for path in (ended_run.connection_file, *ended_run.credentials.iterdir()):
        assert path.stat().st_mode & 0o077 == 0


def test_a_run_is_not_continued_as_another_one(ended_run: RunFolder):
    cwd = ended_run.path.parents[1]
    assert "run.seed = 0, and this run file says 5" in refused("up", "run.toml", "--seed", "5", cwd=cwd)


def test_a_missing_server_binary_says_what_to_install(folder: Path):
    done = busrl("up", "run.toml", cwd=folder, env={"NATS_SERVER_BIN": str(folder / "none")})
    assert done.returncode == 2
    assert "error: NATS_SERVER_BIN=" in done.stderr


def test_doctor_says_whether_a_run_works_here(folder: Path):
    done = here("doctor", "--json")
    assert done.returncode == 0
    parts = {finding["part"]: finding["level"] for finding in json.loads(done.stdout)}
    assert (parts["python"], parts["nats-server"]) == ("ok", "ok")
    broken = busrl("doctor", "--json", env={"NATS_SERVER_BIN": "/nowhere"})
    assert broken.returncode == 1


@pytest.mark.parametrize("arguments", ["check none.toml", "chekc run.toml"])
def test_a_process_says_the_same(folder: Path, arguments: str):
    assert refused(*arguments.split(), cwd=folder, process=True) == refused(*arguments.split(), cwd=folder)


def test_the_version_is_that_of_the_distribution():
    assert here("--version").stdout.startswith("busrl ")
