"""The workflow that builds the kernels where the toolchain is: this project has never run it."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from unicorn_async.npu.geometry import CHIPS, HEAD_DIMS
from unicorn_async.resources import resource_dir

WORKFLOW = Path(__file__).parents[2] / ".github/workflows/npu.yml"


@pytest.fixture
def text() -> str:
    return WORKFLOW.read_text()


def test_it_is_labelled_as_never_run(text: str) -> None:
    assert "NEVER RUN by this project" in text


def test_it_builds_every_chip_and_head_dim_with_the_version_that_the_build_takes(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(resource_dir("npu")))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    toolchain = importlib.import_module("toolchain")
    monkeypatch.delitem(sys.modules, "toolchain")
    assert f'MLIR_AIE: "{toolchain.MLIR_AIE_VERSION}"' in text
    assert f"chip: [{', '.join(chip.name for chip in CHIPS)}]" in text
    assert f"head_dim: [{', '.join(map(str, HEAD_DIMS))}]" in text


@pytest.mark.parametrize("action", ["build", "validate"])
def test_its_commands_have_options_that_there_are(
    text: str, action: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = re.findall(rf"unicorn npu {action} ([^\n\\]*(?:\\\n[^\n\\]*)*)", text)
    options = {word for word in shlex.split(command.replace("\\\n", " ")) if word.startswith("--")}
    monkeypatch.syspath_prepend(str(resource_dir("npu")))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    script: Any = importlib.import_module(action)
    with pytest.raises(SystemExit):
        script.main(["--help"])
    shown = capsys.readouterr().out
    assert options and all(option in shown for option in options)
    for name in list(sys.modules):
        if (resource_dir("npu") / f"{name}.py").exists():
            monkeypatch.delitem(sys.modules, name)
