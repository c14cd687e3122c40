"""The commands of ``busrl``, put together, and the one place where an error becomes a line and an exit code.

Nothing heavy is imported here or by the command modules at their top, so that ``busrl --help`` is quick.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from runtime.cli import bench, control, dead, doctor, fetch, model, publish, runfile, training, up, watch
from runtime.cli.text import EXIT_CODES, epilog
from runtime.errors import BusError, UserError

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

CLICK_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
"""Base of what the option parser raises, whichever parser typer carries."""

RUN, WATCH, TASKS, MODELS, MACHINE = "Run", "Watch", "Tasks", "Models", "This machine"

app = typer.Typer(
    name="busrl",
    help="Reinforcement-learning post-training of language models, as actors on a NATS JetStream bus.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
    if version:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        try:
            print(f"busrl {installed('busrl')}")
        except PackageNotFoundError:
            print("busrl (not installed, run from its source tree)")
        raise typer.Exit


def _add(panel: str, name: str, function: Any, **settings: Any) -> None:
    app.command(name, rich_help_panel=panel, epilog=epilog(function), context_settings=settings or None)(function)


_add(RUN, "demo", up.demo)
_add(RUN, "init", runfile.init)
_add(RUN, "check", runfile.check)
_add(RUN, "config", runfile.config)
_add(RUN, "up", up.up)
_add(RUN, "actor", control.actor)
_add(RUN, "control", control.control)
_add(WATCH, "status", watch.status)
_add(WATCH, "top", watch.top)
_add(WATCH, "tail", watch.tail)
app.add_typer(dead.app, name="dead", rich_help_panel=WATCH)
_add(TASKS, "publish", publish.publish)
_add(MODELS, "sft", training.sft)
_add(MODELS, "export", model.export)
_add(MODELS, "eval", model.evaluate)
app.add_typer(fetch.app, name="model", rich_help_panel=MODELS)
_add(MACHINE, "doctor", doctor.doctor)
_add(MACHINE, "bench", bench.bench, allow_extra_args=True, ignore_unknown_options=True)


def main(argv: list[str] | None = None) -> None:
    """Run a command and exit with its code."""
    sys.exit(run(argv))


def run(argv: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    try:
        outcome = typer.main.get_command(app).main(args=argv, prog_name="busrl", standalone_mode=False)
    except UserError as error:
        return _refuse(str(error), EXIT_BAD_INPUT)
    except CLICK_ERROR as error:
        return _refuse(_usage(error), EXIT_BAD_INPUT)
    except BusError as error:
        return _refuse(str(error), EXIT_FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read us has read enough
        return 0
    return outcome if isinstance(outcome, int) else 0


def _refuse(message: str, code: int) -> int:
    line = " ".join(message.split())
    print(f"error: {line}", file=sys.stderr)
    return code


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    hint = f" (see `{context.command_path} --help`)" if context is not None else ""
    return f"{str(error.format_message()).rstrip('.')}{hint}"
