"""Words that several commands share: exit codes, and the options that say which run is meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

EXIT_CODES = "Exit codes: 0 done, 1 a run or the bus failed, 2 bad input (one line says what and where)."

RunName = Annotated[
    str | None, typer.Option("--run", "-r", metavar="NAME", help="Run: a name or a folder. The latest when left out.")
]
RunsFolder = Annotated[str, typer.Option("--runs", metavar="FOLDER", help="Folder of run folders.")]
BusUrl = Annotated[
    str | None,
    typer.Option("--bus", metavar="URL", help="Bus of a run on another machine, such as nats://host:4222."),
]
CredentialsFile = Annotated[
    str | None,
    typer.Option("--credentials", metavar="FILE", help="A file out of the run's credentials/ folder, for --bus."),
]


Command = TypeVar("Command", bound=Callable[..., Any])


def examples(*lines: str) -> Callable[[Command], Command]:
    """Decorator: examples for the end of a command's help."""

    def mark(command: Command) -> Command:
        command.__examples__ = lines  # type: ignore[attr-defined]
        return command

    return mark


def epilog(command: Callable[..., Any]) -> str:
    """A command's examples and the exit codes, as they stand at the end of its help."""
    lines: tuple[str, ...] = getattr(command, "__examples__", ())
    return "\n\n".join([*(["Examples:"] if lines else []), *(f"  {line}" for line in lines), EXIT_CODES])
