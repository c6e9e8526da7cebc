"""Which runs of pytest tools/test makes, in a checkout of its own whose Python writes down what it is asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "test"
SETUP = """set -euo pipefail
project_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$project_root/.venv
setup() { :; }
say() { :; }
"""
PYTHON = """#!/usr/bin/env bash
[[ $1 == -m && $2 == pytest ]] || exit 0
[[ $3 != --collect-only ]] || exec touch collected
shift 5
echo "${GALLIVM_PERF:--} $*" >>"$RUNS"
for status in $STATUSES; do
  [[ $(wc -l <"$RUNS") -ne ${status%:*} ]] || exit "${status#*:}"
done
"""


def run(folder: Path, *arguments: str, statuses: str = "", **environ: str) -> tuple[int, list[str]]:
    """Return the command's status, and for each run of pytest GALLIVM_PERF and its arguments."""
    (folder / "tools").mkdir(parents=True)
    (folder / "tests" / "ops").mkdir(parents=True)
    (folder / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(TOOL, folder / "tools" / "test")
    (folder / "tools" / "setup.sh").write_text(SETUP, encoding="utf-8")
    for name in ("python", "ruff", "mypy"):
        path = folder / ".venv" / "bin" / name
        path.write_text(PYTHON if name == "python" else f"#!/bin/sh\nexit ${{{name}:-0}}\n", encoding="utf-8")
        path.chmod(0o755)
    runs = folder / "runs"
    runs.touch()
    left = {key: value for key, value in os.environ.items() if key not in ("GALLIVM_PERF", "UNICORN_DEVICE")}
    given = {**left, "RUNS": str(runs), "STATUSES": statuses, **environ}
    done = subprocess.run([folder / "tools" / "test", *arguments], env=given, capture_output=True, check=False)
    return done.returncode, runs.read_text(encoding="utf-8").splitlines()


KERNELS, OTHERS = "nopt tests/ops --whole", "- --ignore=tests/ops --whole"


def test_kernels_of_their_own_tests_are_compiled_without_optimising(tmp_path: Path) -> None:
    assert run(tmp_path, "--whole") == (0, [KERNELS, OTHERS])


@pytest.mark.parametrize("linter", ["ruff", "mypy"])
def test_no_test_runs_where_a_linter_or_the_type_checker_fails(tmp_path: Path, linter: str) -> None:
    assert run(tmp_path, "--whole", **{linter: "3"}) == (3, [])


@pytest.mark.parametrize("named", ["tests/ops", "tests/ops::test_one"])
def test_what_is_named_is_run_as_it_is(tmp_path: Path, named: str) -> None:
    assert run(tmp_path, named, "-q") == (0, [f"- {named} -q"])


@pytest.mark.parametrize("option", ["-k", "-m", "--deselect"])
def test_what_follows_an_option_is_no_path(tmp_path: Path, option: str) -> None:
    found = [line.removesuffix(f" {option} tests") for line in run(tmp_path, option, "tests")[1]]
    assert found == ["nopt tests/ops", "- --ignore=tests/ops"]


@pytest.mark.parametrize("argument", ["-x", "--maxfail=2", "--junitxml=r.xml"])
def test_what_ends_at_a_failure_or_reports_is_one_run(tmp_path: Path, argument: str) -> None:
    assert run(tmp_path, argument) == (0, [f"- {argument}"])


@pytest.mark.parametrize(
    ("arguments", "folder", "collects"),
    [(["--whole"], "other", True), (["--whole"], ".hypothesis/constants", False), (["tests/ops"], "other", False)],
)
def test_one_process_collects_before_all_do_where_none_has(
    tmp_path: Path, arguments: list[str], folder: str, collects: bool
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    assert run(tmp_path, *arguments)[0] == 0
    assert (tmp_path / "collected").exists() == collects


def test_on_a_device_that_is_asked_for_all_is_one_run(tmp_path: Path) -> None:
    assert run(tmp_path, "--whole", UNICORN_DEVICE="radeon") == (0, ["- --whole"])


@pytest.mark.parametrize(
    ("statuses", "expected", "num_runs"),
    [
        ("1:1", 1, 2),  # a failure is not forgotten,
        ("2:1", 1, 2),
        ("1:1 2:5", 1, 2),
        ("1:5", 0, 2),  # a part may have no test that is selected,
        ("2:5", 0, 2),
        ("1:5 2:5", 5, 2),  # but not both
        ("1:2", 2, 1),  # who interrupts one run wants no other
        ("1:1 2:3", 1, 2),
    ],
)
def test_the_status_is_that_of_both_runs(tmp_path: Path, statuses: str, expected: int, num_runs: int) -> None:
    status, runs = run(tmp_path, "--whole", statuses=statuses)
    assert (status, runs) == (expected, [KERNELS, OTHERS][:num_runs])
