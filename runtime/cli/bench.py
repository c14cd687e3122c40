"""``busrl bench``: measure this installation on this machine."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from runtime.cli.text import examples


@examples("busrl bench", "busrl bench codec", "busrl bench overlap --steps 24", "busrl bench generator -- --help")
def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Which; none lists them.")] = None,
) -> None:
    """Run a benchmark of ops/bench; further arguments are the benchmark's own."""
    import importlib
    import pkgutil

    from runtime.errors import UserError

    package = importlib.import_module("ops.bench")
    known = sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))
    if name is None:
        print("benchmarks: " + ", ".join(known))
        return
    if name.replace("-", "_") not in known:
        raise UserError(f"there is no benchmark {name!r}; benchmarks: {', '.join(known)}")
    try:
        main = importlib.import_module(f"ops.bench.{name.replace('-', '_')}").main
    except ModuleNotFoundError as error:
        raise UserError(f"benchmark {name} needs the package {error.name!r}; see `busrl doctor`") from error
    except AttributeError as error:
        raise UserError(f"ops.bench.{name} is a part of other benchmarks and not one itself") from error
    sys.argv = [f"busrl bench {name}", *context.args]
    code = main()
    if code:
        raise typer.Exit(int(code))
