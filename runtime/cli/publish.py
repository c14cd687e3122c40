"""``busrl publish``: tasks from files or a procedural source onto a run's bus, as often as one likes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from runtime.cli.text import BusUrl, CredentialsFile, RunName, RunsFolder, examples

if TYPE_CHECKING:
    from messages import VerifierSpec
    from messages.task import Split
    from ops.telemetry import Telemetry
    from runtime.publisher import PublishReport
    from runtime.runfolder import Connection
    from runtime.task_files import BadLine, TaskDefaults, TaskLine
    from runtime.task_sources import TaskSource

    Progress = Callable[[PublishReport], None]

N_TRAIN, N_EVAL = 2000, 200
EXIT_REFUSED = 2
_FLUSH_S = 5.0


@examples(
    "busrl publish train.jsonl --domain sums --verifier numeric",
    "busrl publish heldout.parquet --split eval --domain sums --verifier numeric",
    "busrl publish --source arithmetic --n 5000 --seed 1 --level 1",
    "busrl publish --source reasoning-gym --name chain_sum,leg_counting",
    "busrl publish tasks.jsonl --bus nats://host:4222 --run sums --credentials user.json",
)
def publish(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="Tasks: .jsonl (one object a line) or .parquet.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="NAME", help="Procedural source, instead of files.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="DATASET", help="With --source reasoning-gym: dataset or several.")
    ] = None,
    n: Annotated[int | None, typer.Option("--n", min=0, help=f"With --source: training tasks ({N_TRAIN}).")] = None,
    n_eval: Annotated[
        int | None, typer.Option("--n-eval", min=0, help=f"With --source: held-out tasks ({N_EVAL}).")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="With --source: other training tasks.")] = None,
    level: Annotated[int | None, typer.Option("--level", min=0, help="With --source: difficulty (0).")] = None,
    domain: Annotated[
        str | None, typer.Option("--domain", metavar="NAME", help="For lines that name none, or a whole source.")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option("--verifier", metavar="KIND", help="For lines that name none, such as numeric.")
    ] = None,
    verifier_options: Annotated[
        str | None, typer.Option("--verifier-options", metavar="JSON", help="Options of --verifier, a JSON object.")
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="train|eval", help="For lines that name none (train).")
    ] = None,
    run: RunName = None,
    runs: RunsFolder = "runs",
    bus: BusUrl = None,
    credentials: CredentialsFile = None,
) -> int:
    """Publish tasks to a run. Bad lines are named and left out; publishing again changes nothing."""
    from runtime.cli import connect
    from runtime.task_sources import TaskSource

    of_files = {"--verifier": verifier, "--verifier-options": verifier_options, "--split": split}
    of_source = {"--name": name, "--n": n, "--n-eval": n_eval, "--seed": seed, "--level": level}
    _check_options(files or [], source, of_files, of_source)
    if source is not None:
        options = {} if name is None else {"name": name}
        counts: dict[Split, int] = {"train": N_TRAIN if n is None else n, "eval": N_EVAL if n_eval is None else n_eval}
        work = _from_source(TaskSource(source, options), counts, seed or 0, level, domain)
    else:
        work = _from_files(files or [], domain, _verifier(verifier, verifier_options), split or "train")
    where = connect.connection(run, runs, bus, credentials)
    folder = None if bus or credentials else connect.find(run, runs).telemetry
    return connect.finish(_publish(where, folder, work))


@dataclass(frozen=True)
class _Work:
    """What to publish: lines, given the run's rules, and about how many there will be, if that can be told."""

    lines: Callable[[TaskDefaults], Iterator[TaskLine | BadLine]]
    total: Callable[[], int | None]


def _check_options(files: list[Path], source: str | None, of_files: dict[str, Any], of_source: dict[str, Any]) -> None:
    from runtime.errors import UserError

    if bool(files) == (source is not None):
        raise UserError("publish takes either files or --source NAME" + (", not both" if files else ""))
    useless = [option for option, value in (of_files if source else of_source).items() if value is not None]
    if useless:
        raise UserError(
            f"{useless[0]} is for files: tasks of a source bring it themselves"
            if source
            else f"{useless[0]} is for --source"
        )
    if of_files["--split"] not in (None, "train", "eval"):
        raise UserError(f"--split {of_files['--split']}: expected train or eval")
    if of_files["--verifier-options"] is not None and of_files["--verifier"] is None:
        raise UserError("--verifier-options needs --verifier KIND")


def _verifier(kind: str | None, options: str | None) -> VerifierSpec | None:
    from messages import VerifierSpec
    from runtime.errors import UserError

    if kind is None:
        return None
    try:
        found = json.loads(options or "{}")
    except ValueError as error:
        raise UserError(f"--verifier-options {options!r} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"--verifier-options {options!r} is not a JSON object")
    return VerifierSpec(kind=kind, options=found)


def _from_files(files: list[Path], domain: str | None, verifier: VerifierSpec | None, split: str) -> _Work:
    from runtime.task_files import check_file, count_rows, read_tasks

    for file in files:
        check_file(file)

    def lines(rules: TaskDefaults) -> Iterator[TaskLine | BadLine]:
        own = replace(rules, domain=domain, split=cast("Split", split))
        if verifier is not None:  # said here and now, so it wins over the run file's
            own = replace(own, verifier=verifier, verifiers={})
        for file in files:
            yield from read_tasks(file, own)

    def total() -> int | None:
        counts = [count for file in files if (count := count_rows(file)) is not None]
        return sum(counts) if len(counts) == len(files) else None

    return _Work(lines, total)


def _from_source(
    source: TaskSource, counts: Mapping[Split, int], seed: int, level: int | None, domain: str | None
) -> _Work:
    from runtime.seeding import HELD_OUT_SEED
    from runtime.task_files import source_tasks

    def lines(rules: TaskDefaults) -> Iterator[TaskLine | BadLine]:
        for split, n in counts.items():
            # more training tasks must not change what a run is measured by
            tasks = source.tasks(n, HELD_OUT_SEED if split == "eval" else seed, split, level)
            if domain is not None:
                tasks = (task.model_copy(update={"domain": domain}) for task in tasks)
            yield from source_tasks(tasks, f"{source.name} {split}", rules)

    return _Work(lines, lambda: sum(counts.values()))


# --- the bus ----------------------------------------------------------------------------------------------------------


async def _publish(where: Connection, folder: Path | None, work: _Work) -> int:
    import asyncio

    from runtime.cli.connect import open_bus, run_settings
    from runtime.publisher import publish_tasks

    async with open_bus(where) as bus:
        resolved = await run_settings(bus)
        bus.telemetry = _telemetry(where.run, folder, resolved)
        started = time.monotonic()
        try:
            with _progress(work) as progress:
                report = await publish_tasks(bus, work.lines(_rules(resolved)), progress)
        finally:
            await asyncio.to_thread(bus.telemetry.shutdown, _FLUSH_S)
    return _tell(report, where.run, time.monotonic() - started)


def _rules(resolved: Mapping[str, Any]) -> TaskDefaults:
    from messages import VerifierSpec
    from runtime.task_files import TaskDefaults

    if not resolved:
        return TaskDefaults()
    domains: dict[str, Any] = resolved["domains"]
    verifiers = {name: found["verifier"] for name, found in domains.items() if found.get("verifier")}
    return TaskDefaults(
        verifiers={name: VerifierSpec.model_validate(verifier) for name, verifier in verifiers.items()},
        domains=frozenset(domains),
        trust_code=bool(resolved["run"]["trust_code"]),
    )


def _telemetry(run: str, folder: Path | None, resolved: Mapping[str, Any]) -> Telemetry:
    """A task's trace begins here: written beside the run's own, or sent to where the OTEL_* variables say."""
    from ops.telemetry import disabled, setup

    if folder is None:
        if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
            return disabled()
        folder = Path(os.devnull)
    settings = resolved.get("telemetry", {})
    return setup(
        "publish",
        instance=f"publish-{os.getpid()}",
        run=run,
        folder=folder,
        traces=bool(settings.get("traces", True)),
        metrics=False,
        sample_ratio=float(settings.get("sample_ratio", 1.0)),
    )


# --- what people see --------------------------------------------------------------------------------------------------


@contextmanager
def _progress(work: _Work) -> Iterator[Progress | None]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("publishing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[refused]}"), console=Console(stderr=True)) as bar:
        shown = bar.add_task("publishing", total=work.total(), refused="")

        def show(report: PublishReport) -> None:
            refused = f"{report.refused} refused" if report.refused else ""
            bar.update(shown, completed=report.lines, refused=refused)

        yield show


def _tell(report: PublishReport, run: str, seconds: float) -> int:
    from runtime.errors import UserError

    if not report.lines:
        raise UserError("there was nothing to publish: not one line")
    for problem in report.problems:
        print(problem, file=sys.stderr)
    more = report.refused - len(report.problems)
    if more > 0:
        print(f"... and {more} more", file=sys.stderr)
    parts = [f"published {_counted(report.published, 'task')} to {run} in {seconds:.1f} s"]
    if report.already_there:
        parts.append(f"{report.already_there} {'was' if report.already_there == 1 else 'were'} there already")
    if report.conflicts:
        parts.append(f"{report.conflicts} {'has' if report.conflicts == 1 else 'have'} the id of another task")
    if report.rejected:
        none = "line is no task" if report.rejected == 1 else "lines are no tasks"
        parts.append(f"{report.rejected} {none}")
    print("; ".join(parts))
    return EXIT_REFUSED if report.refused else 0


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
