"""``busrl export`` and ``busrl eval``: take a policy out of a run, and measure one."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.cli.connect import find
from runtime.cli.text import RunsFolder, examples

if TYPE_CHECKING:
    from messages import Task
    from runtime.runfolder import RunFolder
    from runtime.task_files import BadLine, TaskLine


@contextmanager
def needs_torch() -> Iterator[None]:
    """Turn a missing torch or transformers into a line that says what to install.

    Raises:
        UserError: one is missing.
    """
    from runtime.errors import UserError

    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package in ("actors", "runtime", "messages", "ops"):
            raise
        raise UserError(f"this needs the package {package!r}: pip install 'busrl[torch]'") from error


@examples("busrl export demo --to ./better", "busrl export --to ./better --checkpoint 000012-version-240")
def export(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Name or folder; the latest if none.")] = None,
    to: Annotated[str, typer.Option("--to", metavar="FOLDER", help="Folder to write.")] = "exported",
    checkpoint: Annotated[str | None, typer.Option("--checkpoint", help="Which; the newest when left out.")] = None,
    runs: RunsFolder = "runs",
) -> None:
    """Write the trained policy as a Hugging Face folder that transformers loads."""
    from runtime.errors import UserError

    folder = find(run, runs)
    source = _checkpoint(folder.checkpoints, checkpoint)
    with needs_torch():
        model = importlib.import_module("actors.policy.model")
    try:
        model.load_policy(source, "cpu", "float32").export(Path(to))
    except model.PolicyError as error:
        raise UserError(str(error)) from error
    print(f"wrote {to} (from {source.name}); transformers: AutoModelForCausalLM.from_pretrained({to!r})")


def _checkpoint(folder: Path, name: str | None) -> Path:
    """The newest checkpoint, or the named one.

    Raises:
        UserError: there is none.
    """
    from runtime.errors import UserError

    known = sorted(path for path in folder.glob("*-version-*") if (path / "config.json").is_file())
    if name is not None:
        found = [path for path in known if path.name == name]
        if not found:
            raise UserError(f"{folder} has no checkpoint {name!r}; it has {', '.join(p.name for p in known) or 'none'}")
        return found[0]
    if not known:
        raise UserError(f"{folder} has no checkpoint yet: the learner writes one every learner.checkpoint.every_steps")
    return known[-1]


@examples(
    "busrl eval ./better --source arithmetic --n 200",
    "busrl eval ./better --source reasoning-gym --name chain_sum --level 1",
    "busrl eval ./better --file heldout.jsonl --verifier numeric --json",
    "busrl eval ./policy --run demo",
)
def evaluate(
    policy: Annotated[str, typer.Argument(metavar="FOLDER", help="Model folder.")],
    source: Annotated[str | None, typer.Option("--source", help="Held-out tasks of a procedural source.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="With --source reasoning-gym: which datasets.")] = None,
    level: Annotated[int | None, typer.Option("--level", min=0, help="With --source: difficulty.")] = None,
    number: Annotated[int, typer.Option("--n", min=1, help="With --source: how many tasks.")] = 200,
    file: Annotated[str | None, typer.Option("--file", help="JSONL or Parquet file of tasks.")] = None,
    verifier: Annotated[str | None, typer.Option("--verifier", help="With --file: for lines that name none.")] = None,
    run: Annotated[str | None, typer.Option("--run", "-r", help="Held-out tasks that a run's file names.")] = None,
    runs: RunsFolder = "runs",
    samples: Annotated[int, typer.Option("--samples", min=1, help="Samples per task at temperature 1.")] = 8,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Tokens per answer at most.")] = 64,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the samples.")] = 0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="The scores as JSON.")] = False,
) -> None:
    """Measure a policy: sampled and greedy accuracy per domain, scored by the verifiers of the tasks."""
    from runtime.errors import UserError

    if sum(choice is not None for choice in (source, file, run)) != 1:
        raise UserError("say which tasks: exactly one of --source NAME, --file FILE and --run NAME")
    _refuse_idle({"--name": name, "--level": level}, source is not None, "--source")
    _refuse_idle({"--verifier": verifier}, file is not None, "--file")
    if not (Path(policy) / "config.json").is_file():
        raise UserError(f"{policy} is not a Hugging Face model folder (there is no config.json in it)")
    if source is not None:
        tasks, trust = _source_tasks(source, name, level, number), False
    elif file is not None:
        tasks, trust = _file_tasks(Path(file), verifier), False
    else:
        tasks, trust = _run_tasks(find(run, runs))
    with needs_torch():
        measure = importlib.import_module("actors.evaluator.standalone").run
    scores = measure(
        Path(policy), tasks, samples_per_task=samples, max_tokens=max_tokens, device=device, seed=seed, trust_code=trust
    )
    _show_scores(scores, as_json)


def _refuse_idle(options: dict[str, object], used: bool, owner: str) -> None:
    """An option that would do nothing is an error.

    Raises:
        UserError: one is given without its owner.
    """
    from runtime.errors import UserError

    idle = [name for name, value in options.items() if value is not None and not used]
    if idle:
        raise UserError(f"{idle[0]} goes with {owner}")


def _source_tasks(source: str, name: str | None, level: int | None, number: int) -> Iterator[Task]:
    from runtime.seeding import HELD_OUT_SEED
    from runtime.task_sources import TaskSource

    opened = TaskSource(source, {} if name is None else {"name": name})
    return opened.tasks(number, HELD_OUT_SEED, "eval", level)


def _file_tasks(file: Path, verifier: str | None) -> Iterator[Task]:
    from messages import VerifierSpec
    from runtime.task_files import TaskDefaults, read_tasks

    spec = VerifierSpec(kind=verifier) if verifier is not None else None
    return _good(
        read_tasks(file, TaskDefaults(domain=file.stem.lower(), verifier=spec, split="eval", trust_code=False))
    )


def _run_tasks(folder: RunFolder) -> tuple[Iterator[Task], bool]:
    from runtime.seeding import domain_tasks

    config = folder.config()
    lines = (line for name, domain in config.domains.items() for line in domain_tasks(config, name, domain))
    return (task for task in _good(lines) if task.split == "eval"), config.run.trust_code


def _good(lines: Iterator[TaskLine | BadLine]) -> Iterator[Task]:
    """The tasks; lines that are none are named on standard error."""
    from runtime.task_files import TaskLine

    for line in lines:
        if isinstance(line, TaskLine):
            yield line.task
        else:
            print(f"left out: {line}", file=sys.stderr)


def _show_scores(scores: dict[str, Any], as_json: bool) -> None:
    """Scores by domain: anything with n_tasks, n_errors, sampled_accuracy and greedy_accuracy."""
    figures = ("n_tasks", "n_errors", "samples_per_task", "sampled_accuracy", "greedy_accuracy")
    if as_json:
        print(json.dumps({name: {key: getattr(score, key) for key in figures} for name, score in scores.items()}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("domain", "tasks", "sampled", "greedy", "errors"):
        table.add_column(heading, justify="left" if heading == "domain" else "right")
    for name, score in scores.items():
        sampled, greedy = (_percent(value) for value in (score.sampled_accuracy, score.greedy_accuracy))
        table.add_row(name, str(score.n_tasks), sampled, greedy, str(score.n_errors))
    Console().print(table)


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{100 * value:.1f} %"
