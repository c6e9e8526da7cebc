"""Imports between the package's rooms go one way, and between its files in no circle."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import unicorn_async

PACKAGE = Path(unicorn_async.__file__).parent
# Every room may import these.
BASE = {
    "errors",
    "converted",
    "number_kinds",
    "config",
    "sampling_params",
    "grammar",
    "lora_spec",
    "tensor",
    "packing",
    "resources",
    "background",
    "daemon_threads",
    "trace_file",
    "round_robin",
    "client_turns",
    "rotary",
    "pooling",
}
FILES = {*BASE, "gpu", "ops", "checkpoint", "weights", "lora", "loader", "cache"}  # from a checkpoint to device memory
MODELS = {*BASE, "gpu", "ops", "checkpoint", "weights", "models"}
STEPS = {*FILES, "models", "scheduler", "npu", "memory", "step"}
OPENING = {*STEPS, "public_text", "tune", "tokenizer", "guidance", "hybrid"}
# From the ground up: what each room may import.
ALLOWED = {
    "errors": set(),
    "converted": {"errors"},
    "grammar": {"errors"},
    "number_kinds": set(),
    "lora_spec": {"errors", "converted", "number_kinds"},
    "config": {"errors", "converted", "number_kinds", "pooling", "lora_spec"},
    "sampling_params": {"errors", "converted", "number_kinds", "grammar"},
    "tensor": {"errors", "config"},
    "packing": {"tensor"},
    "resources": {"errors"},
    "background": set(),
    "daemon_threads": {"errors"},
    "round_robin": set(),
    "client_turns": {"errors", "round_robin"},
    "rotary": set(),
    "pooling": set(),
    "trace_file": {"errors", "background"},
    "public_text": set(),
    "demo": set(),
    "gpu": BASE,
    "npu": BASE,
    "ops": {*BASE, "gpu"},
    "tokenizer": {"errors"},
    "guidance": {"errors", "grammar", "client_turns"},
    "calls": {"errors", "grammar"},
    "scheduler": {"errors", "config", "sampling_params", "round_robin", "pooling"},
    "checkpoint": BASE,
    "hub": {*BASE, "checkpoint"},
    "weights": {*BASE, "gpu", "checkpoint"},
    "lora": {*BASE, "checkpoint", "weights"},
    "loader": FILES - {"loader", "cache"},
    "cache": FILES - {"cache", "lora"},
    "models": MODELS - {"models"},
    "memory": {*MODELS, "loader", "scheduler", "npu"},
    "step": STEPS - {"step", "npu", "cache"},
    "tune": {*STEPS, "public_text"} - {"npu", "loader", "cache"},
    "hybrid": STEPS - {"loader", "lora", "cache", "checkpoint", "weights"},
    "kv_store": STEPS - {"loader", "lora", "npu", "step"},
    "engine": {*OPENING, "kv_store"},
    "server": {*BASE, "engine", "tokenizer", "calls", "public_text"},
    "ray": {"errors", "config", "resources", "engine", "server", "cli"},
    "cli": {*OPENING, "kv_store", "engine", "server", "demo", "hub"},
}


def imported_modules(node: ast.AST, package: str) -> set[str]:
    """Full names of what a syntax tree imports, modules or members; for types alone, too."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        source = ".".join([*parents, *([node.module] if node.module else [])])
        return {f"{source}.{alias.name}" for alias in node.names}
    return {name for child in ast.iter_child_nodes(node) for name in imported_modules(child, package)}


def imports_of(path: Path) -> set[str]:
    package = ".".join(("unicorn_async", *path.relative_to(PACKAGE).parent.parts))
    return imported_modules(ast.parse(path.read_text()), package)


def rooms_imported(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports_of(path) if name.startswith("unicorn_async.")}


def files_of(room: str) -> list[Path]:
    file = PACKAGE / f"{room}.py"
    return [file] if file.exists() else sorted((PACKAGE / room).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = ("unicorn_async", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def file_graph() -> dict[str, set[str]]:
    """Which of the package's files each of them imports."""
    paths = {module_name(path): path for path in PACKAGE.rglob("*.py")}

    def file(name: str) -> str:
        return name if name in paths else name.rpartition(".")[0]

    graph = {name: {file(found) for found in imports_of(path)} for name, path in paths.items()}
    return {name: (found & paths.keys()) - {name} for name, found in graph.items()}


def test_every_room_has_its_rule() -> None:
    found = {path.stem if path.suffix == ".py" else path.name for path in PACKAGE.iterdir() if path.name[0] not in "_."}
    assert found - {"py.typed"} == set(ALLOWED)


def test_the_rules_go_one_way() -> None:
    TopologicalSorter(ALLOWED).prepare()


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    wrong = {
        str(path.relative_to(PACKAGE)): sorted(rooms - ALLOWED[room] - {room})
        for path in files_of(room)
        if (rooms := rooms_imported(path)) - ALLOWED[room] - {room}
    }
    assert wrong == {}


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        return list(exc.args[1])
    return []


def test_files_import_each_other_in_no_circle() -> None:
    """Neither at once nor later, from inside a function, nor for types alone."""
    assert circle_in(file_graph()) == []
