"""Imports between the package's rooms go one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import unicorn_async

PACKAGE = Path(unicorn_async.__file__).parent
BASE = {"errors", "converted", "config", "tensor", "resources", "background"}  # every room may import these
ALLOWED = {
    "errors": set(),
    "converted": {"errors"},
    "config": {"errors", "converted"},
    "tensor": {"errors", "config"},
    "resources": {"errors"},
    "background": set(),
    "gpu": BASE,
    "npu": BASE,
    "ops": {*BASE, "gpu"},
    "loader": {*BASE, "gpu"},
    "models": {*BASE, "gpu", "ops", "loader"},
    "scheduler": {"errors", "config"},
    "tokenizer": {"errors"},
    "engine": {*BASE, "gpu", "npu", "ops", "loader", "models", "scheduler", "tokenizer"},
    "server": {*BASE, "engine", "tokenizer"},
    "demo": {*BASE},
    "cli": {*BASE, "gpu", "npu", "ops", "loader", "models", "scheduler", "tokenizer", "engine", "server", "demo"},
}


def imported_modules(node: ast.AST, package: str) -> set[str]:
    """Full names of the modules that a syntax tree imports; with those for types."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        source = ".".join([*parents, *([node.module] if node.module else [])])
        return {f"{source}.{alias.name}" for alias in node.names}
    return {name for child in ast.iter_child_nodes(node) for name in imported_modules(child, package)}


def rooms_imported(path: Path) -> set[str]:
    package = ".".join(("unicorn_async", *path.relative_to(PACKAGE).parent.parts))
    modules = imported_modules(ast.parse(path.read_text()), package)
    return {name.split(".")[1] for name in modules if name.startswith("unicorn_async.")}


def files_of(room: str) -> list[Path]:
    file = PACKAGE / f"{room}.py"
    return [file] if file.exists() else sorted((PACKAGE / room).rglob("*.py"))


def test_every_room_has_its_rule() -> None:
    found = {path.stem if path.suffix == ".py" else path.name for path in PACKAGE.iterdir() if path.name[0] not in "_."}
    assert found - {"py.typed"} == set(ALLOWED)


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    wrong = {
        str(path.relative_to(PACKAGE)): sorted(rooms - ALLOWED[room] - {room})
        for path in files_of(room)
        if (rooms := rooms_imported(path)) - ALLOWED[room] - {room}
    }
    assert wrong == {}
