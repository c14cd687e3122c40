"""``busrl export`` and ``busrl eval``: take a policy out of a run, and measure one."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from runtime.cli.connect import find
from runtime.cli.text import RunsFolder, examples


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
    "busrl eval ./better --file heldout.jsonl --json",
    "busrl eval ./policy --run demo",
)
def evaluate(
    policy: Annotated[str, typer.Argument(metavar="FOLDER", help="Model folder.")],
    source: Annotated[str | None, typer.Option("--source", help="Held-out tasks of a procedural source.")] = None,
    file: Annotated[str | None, typer.Option("--file", help="JSONL or Parquet file of tasks.")] = None,
    run: Annotated[str | None, typer.Option("--run", "-r", help="Held-out tasks of a run.")] = None,
    runs: RunsFolder = "runs",
    number: Annotated[int, typer.Option("--n", min=1, help="Tasks of a source.")] = 200,
    samples: Annotated[int, typer.Option("--samples", min=0, help="Samples per task at temperature 1.")] = 8,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Tokens per answer at most.")] = 64,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of tasks and samples.")] = 0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="The scores as JSON.")] = False,
) -> None:
    """Measure a policy: sampled and greedy accuracy per domain, scored by the verifiers of the tasks."""
    from runtime.errors import UserError

    if sum(choice is not None for choice in (source, file, run)) != 1:
        raise UserError("say which tasks: exactly one of --source NAME, --file FILE and --run NAME")
    if not (Path(policy) / "config.json").is_file():
        raise UserError(f"{policy} is not a Hugging Face model folder (there is no config.json in it)")
    run_folder = find(run, runs).path if run is not None else None
    with needs_torch():
        standalone = importlib.import_module("actors.evaluator.standalone")
        rows = standalone.run(
            policy=Path(policy),
            source=source,
            file=Path(file) if file else None,
            run_folder=run_folder,
            n=number,
            samples=samples,
            max_tokens=max_tokens,
            seed=seed,
            device=device,
        )
    _show_scores(rows, as_json)


def _show_scores(rows: Any, as_json: bool) -> None:
    """``rows`` are Evaluation records."""
    if as_json:
        print(json.dumps([row.model_dump(mode="json") for row in rows]))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("domain", "tasks", "sampled", "greedy", "errors"):
        table.add_column(heading, justify="left" if heading == "domain" else "right")
    for row in rows:
        sampled, greedy = (_percent(value) for value in (row.sampled_accuracy, row.greedy_accuracy))
        table.add_row(row.domain, str(row.n_tasks), sampled, greedy, str(row.n_errors))
    Console().print(table)


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{100 * value:.1f} %"
