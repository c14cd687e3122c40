"""The rooms: no import runs upwards, torch stays in the actors room, and no actor imports another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from messages.topics import EVERY_ACTOR

ROOT = Path(__file__).resolve().parents[1]
MAY_KNOW = {
    "messages": {"messages"},
    "ops": {"messages", "ops"},
    "runtime": {"messages", "ops", "runtime"},
    "sandboxd": {"messages", "ops", "runtime", "sandboxd"},
    "actors": {"messages", "ops", "runtime", "sandboxd", "actors"},
}
HEAVY = {"torch", "transformers", "vllm", "deepspeed"}
FROM_OUTSIDE = {"bench"}
"""Folders of ops that drive the whole system as a user would."""


def imports(room: str) -> Iterator[tuple[Path, str]]:
    """Every module that a file of a room imports, wherever in the file."""
    for path in sorted((ROOT / room).rglob("*.py")):
        if room == "ops" and path.relative_to(ROOT / room).parts[0] in FROM_OUTSIDE:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield path, node.module


def test_no_import_runs_upwards() -> None:
    found = [
        f"{path.relative_to(ROOT)} imports {module}"
        for room, known in MAY_KNOW.items()
        for path, module in imports(room)
        if module.split(".")[0] in MAY_KNOW and module.split(".")[0] not in known
    ]
    assert found == []


def test_torch_stays_in_the_actors_room() -> None:
    found = [
        f"{path.relative_to(ROOT)} imports {module}"
        for room in MAY_KNOW
        if room != "actors"
        for path, module in imports(room)
        if module.split(".")[0] in HEAVY
    ]
    assert found == []


def test_no_actor_imports_another() -> None:
    found = []
    for path, module in imports("actors"):
        mine, parts = path.relative_to(ROOT).parts[1], module.split(".")
        if mine in EVERY_ACTOR and parts[0] == "actors" and len(parts) > 1 and parts[1] in set(EVERY_ACTOR) - {mine}:
            found.append(f"{path.relative_to(ROOT)} imports {module}")
    assert found == []


def test_the_check_sees_what_is_there() -> None:
    assert any(module == "torch" for _, module in imports("actors"))
    assert any(module == "runtime.bus" for _, module in imports("runtime"))
