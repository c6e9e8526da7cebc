"""Engines whose attention is where `auto` puts it: on a machine of files with an NPU's double, and llvmpipe."""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import TYPE_CHECKING

import pytest

from tests.engine.answers import answer, prompt_of
from tests.engine.leftovers import no_leftovers
from tests.npu.builds import write_build
from unicorn_async.config import AttentionKind
from unicorn_async.engine.attending import step_times_files
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import NpuUnavailableError
from unicorn_async.hybrid.step_class import StepClass
from unicorn_async.hybrid.step_times import StepTimes
from unicorn_async.npu.choice import this_identity
from unicorn_async.npu.geometry import NPU1
from unicorn_async.server.fingerprint import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engine.conftest import OpenEngine, WriteModel
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.hybrid.step_times import StepTimesFile

    from .npu_machine import NpuMachine

Files = "dict[AttentionKind, StepTimesFile]"

STEP = StepClass(1, 1, 16)
PROMPT = prompt_of(7, 12)


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch, machine: NpuMachine) -> Iterator[None]:
    with no_leftovers(monkeypatch):
        yield


@pytest.fixture
def files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model_directory: WriteModel,
    device_info: DeviceInfo,
    machine: NpuMachine,
) -> Files:
    """Where the times of the tests' model are kept, by where its attention was."""
    monkeypatch.setattr("unicorn_async.engine.attending.step_times_directory", lambda: tmp_path / "times")
    model = ModelFiles.read(model_directory("qwen3"))
    return step_times_files(model, device_info, "npu1", this_identity(model.config))


@pytest.fixture
def file(files: Files) -> StepTimesFile:
    """Where the GPU's are."""
    return files[AttentionKind.GPU]


def keep(files: Files, gpu_s: float, npu_s: float) -> None:
    for place, seconds in ((AttentionKind.GPU, gpu_s), (AttentionKind.NPU, npu_s)):
        times = StepTimes()
        times.add(place, STEP, [seconds] * 3)
        files[place].add(times)


async def test_without_figures_or_times_the_gpu_attends_and_its_times_are_kept(
    file: StepTimesFile, open_engine: OpenEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_engine("qwen3", attention="auto") as engine:
        assert engine.config.attention.kind is engine.attention.kind is AttentionKind.GPU
        choice = engine.attention.choice
        assert choice is not None and "of this GPU no rates are known" in choice.reason
        assert choice.lines()[0] in caplog.text
        assert json.loads(json.dumps(engine.attention.to_json()))["choice"]["chosen"] == "gpu"
        await answer(engine, PROMPT)
    assert file.read().seconds(AttentionKind.GPU, STEP) is not None


async def test_measured_times_bring_the_npu_in_and_it_is_told_with_them(files: Files, open_engine: OpenEngine) -> None:
    async with open_engine("qwen3") as engine:
        expected, named = (await answer(engine, PROMPT)).ids, engine.attention
        assert (
            named.choice is None and not files[AttentionKind.GPU].path.exists()
        )  # who does not ask for auto measures nothing
    keep(files, 0.2, 0.1)
    async with open_engine("qwen3", attention="auto") as engine:
        attention = engine.attention
        assert attention.kind is AttentionKind.NPU and attention.choice is not None
        assert "gpu 200 ms measured; npu, whole steps 100 ms measured" in "\n".join(attention.choice.lines())
        assert (await answer(engine, PROMPT)).ids == expected
        print_of_auto = fingerprint(engine)
    async with open_engine("qwen3", attention="npu") as engine:
        assert fingerprint(engine) == print_of_auto  # what was compared computes nothing
    assert files[AttentionKind.NPU].read().counts()[STEP] > 3 == files[AttentionKind.GPU].read().counts()[STEP]


async def test_the_gpu_stays_where_the_npu_was_measured_to_be_slower(files: Files, open_engine: OpenEngine) -> None:
    keep(files, 0.1, 0.2)
    async with open_engine("qwen3", attention="auto") as engine:
        assert engine.attention.kind is AttentionKind.GPU and engine.attention.choice is not None
        assert "take 2 times as long" in engine.attention.choice.reason


@pytest.mark.parametrize("is_rebuilt", [True, False])
async def test_times_of_an_npu_with_other_kernels_or_firmware_do_not_count(
    files: Files, machine: NpuMachine, open_engine: OpenEngine, is_rebuilt: bool
) -> None:
    keep(files, 0.2, 0.1)
    if is_rebuilt:
        write_build(machine.builds, NPU1, 64, kernels=(("MLIR_AIE", 9),))
    else:
        machine.machine.write("sys/class/accel/accel0/device/fw_version", "1.5.6.0")
    async with open_engine("qwen3", attention="auto") as engine:
        assert engine.attention.kind is AttentionKind.GPU and engine.attention.choice is not None
        assert "not all classes of steps were measured in both ways" in engine.attention.choice.reason


@pytest.mark.parametrize(
    ("options", "wanted"),
    [({"kv_dtype": "int8"}, "the NPU's cache is bf16, int8 can't be asked for"), ({}, "no NPU of AMD on the PCI bus")],
)
async def test_what_keeps_the_npu_from_being_taken_is_told(
    options: dict[str, str], wanted: str, file: StepTimesFile, machine: NpuMachine, open_engine: OpenEngine
) -> None:
    if not options:
        machine.machine.remove("sys/bus/pci/devices/0000:c4:00.1")
    async with open_engine("qwen3", attention="auto", **options) as engine:
        choice = engine.attention.choice
        assert engine.attention.kind is AttentionKind.GPU and choice is not None
        assert wanted in choice.reason and choice.reason.startswith("the NPU can't be taken: ")
    assert not file.path.exists()


async def test_after_an_npu_that_went_away_the_next_opening_settles_anew_and_says_so(
    files: Files, machine: NpuMachine, open_engine: OpenEngine, caplog: pytest.LogCaptureFixture
) -> None:
    keep(files, 0.2, 0.1)
    async with open_engine("qwen3", attention="auto") as engine:
        await engine.loaded()
        assert engine.attention.kind is AttentionKind.NPU
        machine.npu.faults = deque(["vanishes"])
        with pytest.raises(NpuUnavailableError):
            await answer(engine, PROMPT)
        assert isinstance(await engine.failure(), NpuUnavailableError)  # an open one stays where it was
        assert engine.attention.kind is AttentionKind.NPU
    machine.machine.remove("dev/accel/accel0")
    caplog.set_level(logging.INFO)
    async with open_engine("qwen3", attention="auto") as engine:
        assert engine.attention.kind is AttentionKind.GPU
        assert "no /dev/accel" in json.dumps(engine.attention.to_json())
        assert "attention auto: gpu: the NPU can't be taken: amdxdna is loaded" in caplog.text
        await answer(engine, PROMPT)


async def test_a_damaged_file_of_times_is_told_and_replaced(
    file: StepTimesFile, open_engine: OpenEngine, caplog: pytest.LogCaptureFixture
) -> None:
    file.path.parent.mkdir()
    file.path.write_text("no times")
    async with open_engine("qwen3", attention="auto") as engine:
        assert f"{file.path}: no times of steps" in caplog.text
        await answer(engine, PROMPT)
    assert not file.read().is_empty


async def test_times_that_can_not_be_kept_are_a_warning(
    file: StepTimesFile, open_engine: OpenEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_engine("qwen3", attention="auto") as engine:
        await answer(engine, PROMPT)
        file.path.parent.write_text("a file in the place of the folder")
    assert "goes without these times" in caplog.text
