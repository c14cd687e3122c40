"""``busrl sft``: supervised fine-tuning from a recipe file."""

from __future__ import annotations

import importlib
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from runtime.cli.text import examples


@examples("busrl sft recipe.toml", "busrl sft recipe.toml --seed 1 --out ./policy-1")
def sft(
    recipe: Annotated[
        str, typer.Argument(metavar="FILE", help="Recipe (TOML): policy, files or generator, steps, ...")
    ],
    out: Annotated[str | None, typer.Option("--out", metavar="FOLDER", help="Instead of the recipe's own.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Instead of the recipe's own.")] = None,
    policy: Annotated[str | None, typer.Option("--policy", metavar="FOLDER", help="Instead of the recipe's.")] = None,
) -> None:
    """Train a starting policy from prompt/response pairs. The same recipe and seed give the same weights."""
    given = {"out": str(Path(out).resolve()) if out else None, "seed": seed}
    given["policy"] = str(Path(policy).resolve()) if policy else None
    config = read_recipe(Path(recipe), {name: value for name, value in given.items() if value is not None})
    result = _train(config)
    first, last = result.losses[0], result.losses[-1]
    print(
        f"trained {len(result.losses)} steps in {result.seconds:.0f} s ({result.tokens_per_s:.0f} tokens/s): "
        f"loss {first:.3f} -> {last:.3f} nats per token"
    )
    if result.skipped_pairs:
        print(f"{result.skipped_pairs} pairs were longer than max_tokens and left out")
    for line in result.rejected_lines[:10]:
        print(f"rejected: {line}")
    print(f"policy: {result.folder}")


def read_recipe(path: Path, given: dict[str, Any]) -> Any:
    """An ``SftConfig`` from a TOML file; ``given`` wins over what it says.

    What is read is relative to the file, what is written relative to where you stand, as in run files.

    Raises:
        UserError: it can not be used; the message names file and key.
    """
    from pydantic import ValidationError

    from runtime.errors import ConfigError
    from runtime.runfile import explain

    config_class = importlib.import_module("actors.learner.sft_config").SftConfig
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    policy = table.get("policy")
    if isinstance(policy, str) and ":" not in policy:
        table["policy"] = str((path.resolve().parent / policy).resolve())
    if isinstance(table.get("files"), list):
        table["files"] = [str((path.resolve().parent / str(file)).resolve()) for file in table["files"]]
    try:
        return config_class.model_validate_json(json.dumps({**table, **given}, default=str))
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, config_class)}") from None


def _train(config: Any) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from runtime.cli.model import needs_torch
    from runtime.errors import UserError

    with needs_torch():
        run_sft = importlib.import_module("actors.learner.sft").run_sft
    refused = (
        importlib.import_module("actors.policy.model").PolicyError,
        importlib.import_module("actors.learner.pairs").PairError,
    )
    columns = (
        TextColumn("sft"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[rate]:.0f} tokens/s"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("sft", total=config.total_steps, loss=float("nan"), rate=0.0)
        try:
            return run_sft(config, lambda p: bar.update(task, completed=p.step, loss=p.loss, rate=p.tokens_per_s))
        except refused as error:
            raise UserError(str(error)) from error
