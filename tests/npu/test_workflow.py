"""The workflow that builds the kernels where the toolchain is: this project has never run it."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unicorn_async.npu.geometry import CHIPS, HEAD_DIMS
from unicorn_async.npu.precision import Products
from unicorn_async.resources import resource_dir

WORKFLOW = Path(__file__).parents[2] / ".github/workflows/npu.yml"


@pytest.fixture
def text() -> str:
    return WORKFLOW.read_text()


@pytest.fixture
def workflow(text: str) -> Any:
    """The file as GitHub reads it."""
    return pytest.importorskip("yaml").safe_load(text)


def test_it_is_labelled_as_never_run(text: str) -> None:
    assert "NEVER RUN by this project" in text and "is unknown" in text


def test_it_builds_every_chip_and_head_dim_with_the_version_that_the_build_takes(
    workflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(resource_dir("npu")))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    toolchain = importlib.import_module("toolchain")
    monkeypatch.delitem(sys.modules, "toolchain")
    assert workflow["env"]["MLIR_AIE"] == toolchain.MLIR_AIE_VERSION
    assert workflow["jobs"]["build"]["strategy"]["matrix"] == {
        "chip": [chip.name for chip in CHIPS],
        "head_dim": list(HEAD_DIMS),
        "products": [kind.value for kind in Products],
        "exclude": [
            {"chip": chip.name, "products": kind.value}
            for chip in CHIPS
            for kind in Products
            if kind not in chip.products
        ],
    }


def test_its_steps_are_ones_that_a_runner_takes_and_its_scripts_are_shell(workflow: Any) -> None:
    jobs = workflow["jobs"]
    scripts = []
    for job in jobs.values():
        assert {"runs-on", "timeout-minutes", "steps"} <= job.keys()
        assert {job.get("needs", name) for name in jobs} <= jobs.keys()
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            assert step.keys() <= {"run", "uses", "with", "name", "if", "env", "working-directory"}
            scripts.append(step.get("run", ""))
    shell = "\n".join(re.sub(r"\$\{\{.*?\}\}", "word", script) for script in scripts)
    checked = subprocess.run(["bash", "-n"], input=shell, capture_output=True, text=True, check=False)
    assert checked.returncode == 0 and "unicorn npu build" in shell, checked.stderr


def test_what_it_runs_of_others_does_not_move_and_gets_no_token(workflow: Any) -> None:
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", name) for name in used)
    assert not any("GH_TOKEN" in str(workflow["jobs"][name].get("env")) for name in workflow["jobs"])
    trusted = [step["run"] for step in steps if "GH_TOKEN" in step.get("env", {})]
    assert len(trusted) == 1 and not re.search(r"\b(pip|python3?|unicorn)\b", trusted[0])
    checkouts = [step["with"] for step in steps if "checkout" in step.get("uses", "")]
    assert all(given["persist-credentials"] is False for given in checkouts)


def test_what_it_keeps_of_a_build_is_what_an_emulator_is_given(workflow: Any) -> None:
    steps = {name: job["steps"] for name, job in workflow["jobs"].items()}
    (kept,) = (step["with"] for step in steps["build"] if "upload-artifact" in step.get("uses", ""))
    (taken,) = (step["with"] for step in steps["emulate"] if "download-artifact" in step.get("uses", ""))
    values = {"chip": "npu1", "head_dim": "128", "products": "bf16"}
    assert re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda found: values[found[1]], kept["name"]) == taken["name"]
    assert "builds" in kept["path"].split() and workflow["jobs"]["emulate"]["needs"] == "build"
    # the builds are one of several paths, so they lie in a folder of their name
    (asked,) = (step["run"] for step in steps["emulate"] if "unicorn npu validate" in step.get("run", ""))
    assert f"--builds {taken['path']}/builds" in asked and "--head-dim 128" in asked


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
