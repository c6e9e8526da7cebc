"""A machine with an NPU, made of files and of a double of pyxrt."""

from __future__ import annotations

import gc
import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.npu import fake_iron
from tests.npu.builds import write_build
from tests.npu.fake_xrt import Npu
from tests.npu.machine import Machine
from unicorn_async.npu.context import Context
from unicorn_async.npu.device import Device
from unicorn_async.npu.geometry import NPU1
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from unicorn_async.npu.manifest import Build

_SCRIPTS = ("build", "program_memory", "toolchain", "attention_design")
_VALIDATION = ("validate", "validate_options", "gpu_load", "hand_over", "known_answers", "task_growth", "user_names")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports the scripts of npu/ by name."""
    monkeypatch.syspath_prepend(str(resource_dir("npu")))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in _SCRIPTS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in _SCRIPTS:
        sys.modules.pop(name, None)


@pytest.fixture
def iron(monkeypatch: pytest.MonkeyPatch) -> None:
    """mlir-aie's Python is the recorder."""
    for name, module in fake_iron.modules().items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> Path:
    """Where kernels that g++ built are kept, from one session to the next."""
    return request.config.cache.mkdir("npu-kernels")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """The files of a machine with an npu1."""
    return Machine(tmp_path / "machine")


@pytest.fixture
def npu(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Npu]:
    """The hardware; pyxrt is the double as long as the test runs. It must not be left with buffers or contexts."""
    made = Npu(kernels)
    monkeypatch.setitem(sys.modules, "pyxrt", made.module())
    yield made
    made.release()
    gc.collect()  # the traceback of an error may hold a run, and a run its buffers
    assert (made.buffers, made.contexts, made.unmapped_first) == (0, 0, 0)


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """A build for npu1 and a head_dim of 64."""
    return write_build(tmp_path / "builds", NPU1, 64)


@pytest.fixture
def device(machine: Machine, npu: Npu) -> Iterator[Device]:
    """The opened NPU."""
    with Device.open(machine.host()) as opened:
        yield opened


@pytest.fixture
def context(device: Device, build: Build) -> Iterator[Context]:
    """A context with the build's kernels."""
    made = Context(device, build)
    yield made
    made.close()


@pytest.fixture
def validate(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the script in this process, on the machine of files, and returns status and report."""
    monkeypatch.syspath_prepend(str(resource_dir("npu")))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    script = importlib.import_module("validate")
    monkeypatch.setattr(script, "NpuHost", machine.host)
    report = tmp_path / "report.json"

    def run(*arguments: str) -> tuple[int, Any]:
        short = ("--repeats", "3", "--soak-seconds", "0.05", "--contexts", "1", "65")
        given = ["--builds", str(tmp_path / "builds"), "--out", str(report), *short, *arguments]
        status: int = script.main(given)
        return status, json.loads(report.read_text()) if report.exists() else None

    yield run
    for name in _VALIDATION:
        sys.modules.pop(name, None)
