"""``busrl init``, ``check`` and ``config``: write, check and explain run files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.cli.text import examples

if TYPE_CHECKING:
    from runtime.reference import Row

TEMPLATE = """\
# A run of busrl. `busrl check {name}` says what is wrong with this file, `busrl config` explains every key.

[run]
name = "{run}"            # names the folder runs/{run} and the subjects on the bus
seed = 0
max_steps = 200           # stop at this weight version; 0 runs until Ctrl-C
# trust_code = true       # allow `python` verifiers, which run your own functions

[policy]
path = "{policy}"         # a Hugging Face model folder, relative to this file
device = "auto"           # CUDA where there is a GPU, else CPU
dtype = "float32"

[training]
group_size = 16           # samples per task
groups_per_batch = 32     # groups per optimiser step
max_lag = 2               # weight versions that a trained token may be old; 0 is synchronous
batches_ahead = 1

[sampling]
max_tokens = 64
temperature = 1.0
# deadline_s = 60.0       # a sample that takes longer is cut off

# One section per domain. Tasks come from a procedural source, from files, or from `busrl publish` at any time.
[domains.arithmetic]
weight = 1.0
source = {{ name = "arithmetic", n_train = 2000, n_eval = 200 }}

# [domains.mine]
# files = ["train.jsonl"]            # lines such as {{"prompt": "2+2=", "answer": "4"}}
# eval_files = ["heldout.jsonl"]
# verifier = {{ kind = "numeric" }}    # for tasks that name none

# Each actor is a process of its own; generator, verifier and evaluator may be several.
[generator]
count = 1
threads = 1

[verifier]
count = 1

[learner]
threads = 1
lr = 3e-4

[evaluator]
count = 1                 # 0 evaluates nothing
"""


@examples("busrl init", "busrl init sums.toml --policy ./my-model", "busrl init --force")
def init(
    path: Annotated[str, typer.Argument(metavar="[FILE]", help="File to write.")] = "run.toml",
    policy: Annotated[str, typer.Option("--policy", metavar="FOLDER", help="Model folder to train.")] = "policy",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a commented run file to start from."""
    from runtime.errors import UserError

    target = Path(path)
    if target.exists() and not force:
        raise UserError(f"{target} exists; choose another name, or --force to overwrite it")
    stem = "".join(c if c.isalnum() else "-" for c in target.stem.lower()).strip("-_") or "run"
    run = stem if stem[0].isascii() else "run"
    text = TEMPLATE.format(name=target, run=run, policy=policy)
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{target} can not be written: {error.strerror or error}") from error
    print(f"wrote {target}; next: `busrl check {target}`, then `busrl up {target}`")


@examples("busrl check run.toml", "busrl check run.toml --json | jq .training")
def check(
    path: Annotated[str, typer.Argument(metavar="FILE", help="Run file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the resolved file as JSON.")] = False,
) -> None:
    """Validate a run file and print what it resolves to, defaults included. Starts nothing."""
    from runtime.runfile import load, to_json

    config = load(path)
    if as_json:
        print(to_json(config))
        return
    for line in _resolved_lines(config.model_dump(mode="json")):
        print(line)
    counts = ", ".join(f"{n} {kind}" for kind, n in config.counts().items() if n)
    domains = f"{len(config.domains)} domain{'s' if len(config.domains) != 1 else ''}"
    print(f"\n{path} is right: {sum(config.counts().values())} processes ({counts}), {domains}")


@examples("busrl config", "busrl config learner", "busrl config domains", "busrl config --markdown > run-file.md")
def config(
    section: Annotated[str | None, typer.Argument(metavar="[SECTION]", help="Only this section.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown tables.")] = False,
) -> None:
    """Explain every key of a run file: type, default, bounds and meaning."""
    from runtime.errors import UserError
    from runtime.reference import describe, section_titles

    rows, titles = describe(), section_titles()
    if section is not None:
        wanted = section.strip("[]")
        rows = [row for row in rows if row.section == wanted or row.section.startswith(f"{wanted}.")]
        if not rows:
            raise UserError(f"there is no section [{wanted}]; sections: {', '.join(dict.fromkeys(titles))}")
    for place in dict.fromkeys(row.section for row in rows):
        print(f"## [{place}]\n" if markdown else f"[{place}]")
        print(f"{titles.get(place, '')}\n" if markdown else f"# {titles.get(place, '')}")
        if markdown:
            print("| key | type | default | bounds | meaning |\n|---|---|---|---|---|")
        for row in (row for row in rows if row.section == place):
            print(_markdown(row) if markdown else _plain(row))
        print()


def _plain(row: Row) -> str:
    bounds = f" ({row.bounds})" if row.bounds else ""
    value = row.default if row.default not in ("", "required") else f"<{row.default or 'none'}>"
    return f"{row.key} = {value}\n    # {row.type}{bounds}: {row.description}"


def _markdown(row: Row) -> str:
    cells = (f"`{row.key}`", row.type, f"`{row.default}`" if row.default else "none", row.bounds, row.description)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _resolved_lines(table: dict[str, object], section: str = "") -> list[str]:
    from runtime.reference import to_toml

    lines = []
    for key, value in table.items():
        if not isinstance(value, dict) and value is not None:
            lines.append(f"{key} = {to_toml(value)}")
    if section and lines:
        lines = ["", f"[{section}]", *lines]
    for key, value in table.items():
        if isinstance(value, dict):
            place = f"{section}.{key}" if section else key
            lines += _resolved_lines(value, place) if value else []
    return lines
