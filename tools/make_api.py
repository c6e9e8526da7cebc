"""Write docs/api.md, the reference of what `unicorn_async` lists in `__all__`, from its docstrings.

    python tools/make_api.py

It reads the sources and imports none of them. tests/test_public.py fails where the page is not up to date.
"""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
PACKAGE = "unicorn_async"
ERRORS = f"{PACKAGE}.errors"  # its docstring has all of them
SECTIONS = {
    "The engine": ("Engine", "InstanceStart"),
    "Options": (
        "EngineConfig",
        "LoraSpec",
        "KVDType",
        "WeightScheme",
        "AttentionTarget",
        "AttentionKind",
        "SplitMode",
        "ExchangeKind",
    ),
    "Requests": (
        "SamplingParams",
        "Grammar",
        "GrammarKind",
        "Token",
        "FinishReason",
        "ChatMessage",
        "ToolCall",
        "Tokenizer",
    ),
    "What an engine says of itself": (
        "LoadProgress",
        "EngineStats",
        "KernelTime",
        "ModelSpec",
        "DeviceInfo",
        "DeviceType",
        "AdapterInfo",
        "DraftInfo",
        "AttentionInfo",
        "AttentionStats",
        "KVStoreStats",
        "MemoryReport",
        "HeapReport",
        "CacheStatus",
        "CacheState",
        "ReadStrategy",
        "ReadMode",
    ),
}
INTRODUCTION = """\
# API reference

Made by `tools/make_api.py` from the docstrings; change them, and run it again.

Everything on this page is imported from `unicorn_async` itself: `from unicorn_async import Engine, EngineConfig`.
Everything else in the package, each module's name among it, is private and may change with any version.
"""


Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Source:
    """A module's text and its syntax tree."""

    lines: list[str]
    tree: ast.Module

    @classmethod
    def of(cls, module: str) -> Source:
        """Read a module of this checkout."""
        path = ROOT.joinpath(*module.split("."))
        text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
        return cls(text.splitlines(), ast.parse(text))

    def class_named(self, name: str) -> ast.ClassDef:
        """Return a class at the top of the module."""
        return next(node for node in self.tree.body if isinstance(node, ast.ClassDef) and node.name == name)

    def home_of(self, name: str) -> str | None:
        """Return the package's module that a name is imported from; None for other names."""
        imports = (node for node in self.tree.body if isinstance(node, ast.ImportFrom))
        modules = (node.module for node in imports if any(alias.name == name for alias in node.names))
        return next((m for m in modules if m is not None and m.startswith(f"{PACKAGE}.")), None)

    def signature(self, function: Function) -> str:
        """Return a function's head as it is written, without the colon at its end."""
        first = function.decorator_list[0].lineno if function.decorator_list else function.lineno
        head = self.lines[first - 1 : function.body[0].lineno - 1]
        return textwrap.dedent("\n".join(head)).rstrip().removesuffix(":")

    def comment(self, node: ast.stmt) -> str:
        """Return the comment behind a statement, or else the one right above it."""
        behind = self.lines[(node.end_lineno or node.lineno) - 1].encode()[node.end_col_offset or 0 :].decode().strip()
        if behind.startswith("#"):
            return behind.lstrip("# ")
        above: list[str] = []
        number = node.lineno - 2
        while self.lines[number].lstrip().startswith("#"):
            above.insert(0, self.lines[number].lstrip("# "))
            number -= 1
        return " ".join(above)


def public_names() -> dict[str, str]:
    """Return the public names, each with its module."""
    imports = (node for node in ast.walk(Source.of(PACKAGE).tree) if isinstance(node, ast.ImportFrom))
    return {
        alias.name: node.module
        for node in imports
        if node.module is not None and node.module.startswith(f"{PACKAGE}.")
        for alias in node.names
    }


def page() -> str:
    """Return the whole page.

    Raises:
        ValueError: a public name is in no section, or one in a section isn't public.
    """
    homes = public_names()
    listed = {name for names in SECTIONS.values() for name in names}
    wanted = {name for name, module in homes.items() if module != ERRORS}
    if listed != wanted:
        raise ValueError(f"sections and public names differ in {', '.join(sorted(listed ^ wanted))}")
    parts = [INTRODUCTION]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        for name in names:
            source = Source.of(homes[name])
            parts += class_parts(source, source.class_named(name))
    return "\n".join([*parts, "## Errors\n", *error_parts()])


def class_parts(source: Source, node: ast.ClassDef) -> list[str]:
    """Return the paragraphs about a class."""
    parts = [f"### {node.name}\n", prose(node)]
    is_enum = any(ast.unparse(base) == "Enum" for base in node.bases)
    rows = member_rows(source, node) if is_enum else field_rows(source, node)
    if rows:
        titles = ("member", "value", "") if is_enum else ("field", "type", "default", "")
        parts.append(table(titles, rows))
    public = public_functions(source, node)
    properties = [function for _, function in public if is_property(function)]
    if properties:
        rows = [(code(p.name), code(annotation(p.returns)), summary(p)) for p in properties]
        parts.append(table(("property", "type", ""), rows))
    methods = [(home, function) for home, function in public if function not in properties]
    return [*parts, *(part for home, function in methods for part in method_parts(home, node.name, function))]


def public_functions(source: Source, node: ast.ClassDef) -> list[tuple[Source, Function]]:
    """Return a class's functions for users, each with its module; those of its bases stand behind its own."""
    functions = (member for member in node.body if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef))
    public = [(source, member) for member in functions if ast.get_docstring(member) and is_public(member.name)]
    for name in map(ast.unparse, node.bases):
        module = source.home_of(name)
        if module is not None:
            base = Source.of(module)
            public += public_functions(base, base.class_named(name))
    return public


def method_parts(source: Source, owner: str, node: Function) -> list[str]:
    """Return the paragraphs about a method."""
    name = owner if node.name == "__init__" else f"{owner}.{node.name}"
    return [f"#### `{name}`\n", f"```python\n{source.signature(node)}\n```\n", prose(node)]


def error_parts() -> list[str]:
    """Return the paragraphs about errors."""
    first, tree = docstring(Source.of(ERRORS).tree).split("\n\n", 1)
    return [f"{first}\n", f"```\n{tree}\n```\n"]


def member_rows(source: Source, node: ast.ClassDef) -> list[tuple[str, ...]]:
    """Return an enumeration's members, their values and what is said of them."""
    members = [member for member in node.body if isinstance(member, ast.Assign)]
    return [(code(ast.unparse(m.targets[0])), code(ast.unparse(m.value)), source.comment(m)) for m in members]


def field_rows(source: Source, node: ast.ClassDef) -> list[tuple[str, ...]]:
    """Return a dataclass's fields, their types, defaults and what is said of them."""
    fields = [member for member in node.body if isinstance(member, ast.AnnAssign)]
    return [
        (code(ast.unparse(f.target)), code(annotation(f.annotation)), code(default(f.value)), source.comment(f))
        for f in fields
        if is_public(ast.unparse(f.target))
    ]


def annotation(node: ast.expr | None) -> str:
    """Return a type as text; of a converted field what may be given."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Converted" and isinstance(node.slice, ast.Tuple):
        return " | ".join(map(ast.unparse, node.slice.elts))
    return "" if node is None else ast.unparse(node)


def default(node: ast.expr | None) -> str:
    """Return a field's default as text, nothing where it has none."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "Converted":
        return "".join(map(ast.unparse, node.args))
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        return given.get("default", f"{given.get('default_factory', '')}()")
    return "" if node is None else ast.unparse(node)


def is_public(name: str) -> bool:
    """Whether a member is for users; a constructor is where it has a docstring."""
    return not name.startswith("_") or name == "__init__"


def is_property(node: Function) -> bool:
    """Whether a function is read as an attribute."""
    return any(ast.unparse(decorator) == "property" for decorator in node.decorator_list)


def docstring(node: ast.Module | ast.ClassDef | Function) -> str:
    """Return a docstring, nothing where there is none."""
    return ast.get_docstring(node) or ""


def prose(node: ast.ClassDef | Function) -> str:
    """Return a docstring as Markdown."""
    text, errors = docstring_parts(node)
    return "\n".join([text, *(["", "Raises:", "", *(f"- {error}" for error in errors)] if errors else []), ""])


def summary(node: Function) -> str:
    """Return a docstring in one line."""
    text, errors = docstring_parts(node)
    return " ".join([*text.split(), *(["Raises", "; ".join(errors)] if errors else [])])


def docstring_parts(node: ast.ClassDef | Function) -> tuple[str, list[str]]:
    """Return what a docstring says, and its list of errors."""
    text, _, raised = docstring(node).partition("\nRaises:\n")
    items = re.split(r"\n(?! )", textwrap.dedent(raised)) if raised else []
    return text.strip(), [" ".join(item.split()) for item in items]


def code(text: str) -> str:
    """Return text as code, nothing for nothing."""
    return f"`{text}`" if text else ""


def table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table; a column that is empty in every row is left out."""
    kept = [column for column in range(len(titles)) if any(row[column] for row in rows)]
    lines = [[titles[column] for column in kept], ["---"] * len(kept)]
    lines += [[row[column].replace("|", r"\|") for column in kept] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
