"""What the documents name is there: commands with their options, files, headings; and figures have their commit."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import sys
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.tools.test_benchmark_reports import LIMITS, report, run

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PERFORMANCE = ROOT / "docs" / "performance.md"
MOST_LINES = 250
COMMAND = re.compile(r"^ {4}python3 benchmarks/(\w+)\.py(.*)$", re.MULTILINE)
COMMANDS = [match for document in DOCUMENTS for match in COMMAND.findall(document.read_text(encoding="utf-8"))]
COMMITS = re.compile(r"[0-9a-f]{7}(, [0-9a-f]{7})*")


class Parsed(Exception):
    """A command line is all right; what would follow is not done."""


@pytest.mark.parametrize(("script", "arguments"), COMMANDS, ids=[" ".join(command) for command in COMMANDS])
def test_commands_of_the_documents_can_be_run_with_their_options(
    script: str, arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parsed(parser: argparse.ArgumentParser, *args: Any, **more: Any) -> None:
        parse(parser, *args, **more)
        raise Parsed

    (tmp_path / "REPORT.json").write_text(json.dumps({"reports": [report(run(1, 5.0), limits=LIMITS)]}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: name)  # of llama.cpp, which need not be here
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *shlex.split(arguments, comments=True)])
    main: Callable[[], object] = import_module(script).main
    with pytest.raises(Parsed):
        main()


def test_the_documents_name_commands() -> None:
    scripts = {script for script, _ in COMMANDS}
    assert scripts >= {
        "speed",
        "peers",
        "host",
        "kernels",
        "load",
        "first_answer",
        "serving",
        "first_token",
        "far_attention",
        "quality",
        "report",
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_files_that_a_document_names_are_there(document: Path) -> None:
    named = re.findall(r"\b(?:benchmarks|tools)/\w+(?:\.\w+)?", document.read_text(encoding="utf-8"))
    assert [name for name in named if name != "benchmarks/NAME" and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_of_a_document_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for file, anchor in re.findall(r"\]\((?!\w+:)([^)#]*)(?:#([^)]*))?\)", text):
        target = document.parent / file if file else document
        assert target.exists(), file
        assert not anchor or anchor in anchors(target), f"{file}#{anchor}"


def anchors(document: Path) -> set[str]:
    """Return what headings can be linked by."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_figures_are_few_enough_to_be_read() -> None:
    assert len(PERFORMANCE.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_every_row_of_figures_has_its_commit() -> None:
    lines = PERFORMANCE.read_text(encoding="utf-8").splitlines()
    tables = [list(rows) for is_table, rows in groupby(lines, lambda line: line.startswith("|")) if is_table]
    figures = [table for table in tables if not table[0].startswith("| question |")]
    assert len(figures) == len(tables) - 1
    for head, _, *rows in figures:
        assert head.endswith(" commit |"), head
        assert [row for row in rows if not COMMITS.fullmatch(row.split("|")[-2].strip())] == []
        assert {row.count("|") for row in rows} == {head.count("|")}, head


def test_the_ways_through_the_house_name_files_that_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    ways = text.split("### The way of")[1:]
    assert len(ways) == 2
    missing, found, room = [], 0, ""
    for line in "\n".join(way.split("```")[1] for way in ways).splitlines():
        match = re.match(r"(\w+)/ +", line)
        room = match[1] if match else room
        names = re.split(r" {2,}", line[match.end() if match else 0 :].strip())[0]
        for name in re.findall(r"[a-z][a-z0-9_/]*", names.replace("families/NAME", "families/").replace(" or ", " ")):
            folder, found = ROOT / "unicorn_async" / room, found + 1
            places = (folder / f"{name.rstrip('/')}.py", folder / name, folder / "blocks" / f"{name}.py")
            if not any(place.exists() for place in places):
                missing.append(f"{room}/{name}")
    assert found > 50
    assert missing == []
