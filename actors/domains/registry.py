"""The named sources: looking one up imports that source's module and no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from actors.domains.errors import BadSourceOption, UnknownSource
from actors.domains.source import ProceduralSource, Source

GYM = "reasoning-gym"


def source_names() -> tuple[str, ...]:
    """The names that ``open_source`` knows."""
    return tuple(_SOURCES)


def open_source(name: str, /, **options: Any) -> Source:
    """Return the source called ``name``.

    Args:
        name: one of ``source_names()``.
        **options: what the source takes to be opened; ``reasoning-gym`` takes ``name``, a dataset or several
            of them separated by commas (all of them when left out).

    Raises:
        UnknownSource: there is no such source.
        BadSourceOption: it does not take such an option.
    """
    return open_procedural(name, **options)


def open_procedural(name: str, /, **options: Any) -> ProceduralSource:
    """Return the source as ``open_source`` does, with what SFT needs of it: its domains and their endless tasks."""
    if name not in _SOURCES:
        raise UnknownSource(f"there is no task source {name!r}, use one of {', '.join(_SOURCES)}")
    return _SOURCES[name](options)


def phrases_of(name: str) -> tuple[str, ...]:
    """Return the fixed pieces of text in a source's prompts and answers, which a small tokenizer gives an id each.

    Raises:
        UnknownSource: there is no such source.
    """
    return open_procedural(name).phrases


def _arithmetic(options: Mapping[str, Any]) -> ProceduralSource:
    from actors.domains.arithmetic import Arithmetic

    _refuse("arithmetic", options)
    return ProceduralSource("arithmetic", [Arithmetic()])


def _strings(options: Mapping[str, Any]) -> ProceduralSource:
    from actors.domains.strings import Strings

    _refuse("strings", options)
    return ProceduralSource("strings", [Strings()])


def _retrieval(options: Mapping[str, Any]) -> ProceduralSource:
    from actors.domains.retrieval import Retrieval

    _refuse("retrieval", options)
    return ProceduralSource("retrieval", [Retrieval()])


def _gym(options: Mapping[str, Any]) -> ProceduralSource:
    from actors.domains.gym import SIZINGS, GymDataset

    _refuse(GYM, options, "name")
    names = [name.strip() for name in str(options["name"]).split(",")] if options.get("name") else list(SIZINGS)
    return ProceduralSource(GYM, [GymDataset(name) for name in names])


def _demo(options: Mapping[str, Any]) -> ProceduralSource:
    from actors.domains.arithmetic import Arithmetic
    from actors.domains.gym import SIZINGS, GymDataset
    from actors.domains.retrieval import Retrieval
    from actors.domains.strings import Strings

    _refuse("demo", options)
    return ProceduralSource("demo", [Arithmetic(), Strings(), Retrieval(), *map(GymDataset, SIZINGS)])


def _refuse(source: str, options: Mapping[str, Any], *known: str) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise BadSourceOption(f"source {source!r} has no option {unknown[0]!r}: {takes}")


_SOURCES: Mapping[str, Callable[[Mapping[str, Any]], ProceduralSource]] = {
    "demo": _demo,
    "arithmetic": _arithmetic,
    "strings": _strings,
    "retrieval": _retrieval,
    GYM: _gym,
}
