"""``busrl up`` and ``busrl demo``: bring a run up and keep it up until it is done."""

from __future__ import annotations

import asyncio
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.text import examples

if TYPE_CHECKING:
    from runtime.config import RunConfig

Name = Annotated[str | None, typer.Option("--name", help="Instead of the file's run.name.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Instead of the file's run.seed.")]
MaxSteps = Annotated[int | None, typer.Option("--max-steps", min=0, help="Instead of the file's run.max_steps.")]
Plain = Annotated[bool, typer.Option("--plain", help="Log lines instead of the live board.")]


@examples("busrl up run.toml", "busrl up run.toml --name second --seed 1", "busrl up run.toml --plain 2> run.log")
def up(
    path: Annotated[str, typer.Argument(metavar="FILE", help="Run file; `busrl init` writes one.")],
    name: Name = None,
    seed: Seed = None,
    max_steps: MaxSteps = None,
    plain: Plain = False,
) -> None:
    """Bring a run up: the bus, the actors, the live board, and the report at the end.

    Ctrl-C drains the run, and the same command continues it. Ctrl-C twice kills it, which loses nothing either.
    """
    from runtime.runfile import load

    _up(changed(load(path), name, seed, max_steps), Path(path), plain)


@examples("busrl demo", "busrl demo --seed 1")
def demo(name: Name = None, seed: Seed = None, max_steps: MaxSteps = None, plain: Plain = False) -> None:
    """Watch a small language model get better at a dozen domains, on this machine, in a few minutes."""
    from runtime.runfile import load

    path = demo_file()
    config = changed(load(path), name, seed, max_steps)
    if name is None:
        config = changed(config, free_name(config), None, None)
    _up(config, path, plain)


def changed(config: RunConfig, name: str | None, seed: int | None, max_steps: int | None) -> RunConfig:
    """The run file with what the command line says instead.

    Raises:
        UserError: the name can not be a run's.
    """
    from messages import InvalidName, check_name
    from runtime.errors import UserError

    given = {"name": name, "seed": seed, "max_steps": max_steps}
    if name is not None:
        try:
            check_name(name, "--name")
        except InvalidName as error:
            raise UserError(str(error)) from error
    run = config.run.model_copy(update={key: value for key, value in given.items() if value is not None})
    return config.model_copy(update={"run": run})


def demo_file() -> Path:
    """The demo's run file: in the source tree, or as it was installed.

    Raises:
        UserError: this installation has none.
    """
    from runtime.errors import UserError

    beside = Path(__file__).resolve().parents[2] / "examples" / "demo" / "run.toml"
    installed = Path(sysconfig.get_path("data")) / "share" / "busrl" / "demo" / "run.toml"
    for path in (beside, installed):
        if path.is_file():
            return path
    raise UserError(f"this installation has no demo (looked for {beside}); install the distribution, or clone it")


def free_name(config: RunConfig) -> str:
    """The run's name, or the first of name-2, name-3, ... that no folder has: a demo begins afresh."""
    base, number = config.run.name, 1
    while True:
        name = base if number == 1 else f"{base}-{number}"
        if not (Path(config.run.dir) / name).exists():
            return name
        number += 1


def _up(config: RunConfig, path: Path, plain: bool) -> None:
    from runtime.display import Display
    from runtime.launcher import Launcher

    async def run() -> int:
        display = Display(live=False if plain else None)
        return await Launcher(config, path, display).run()

    code = asyncio.run(run())
    if code:
        raise typer.Exit(code)
