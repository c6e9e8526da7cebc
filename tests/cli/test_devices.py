from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu.made_up import DISCRETE, INTEGRATED, SOFTWARE

from tests.npu.builds import write_build
from tests.npu.machine import Machine
from unicorn_async.cli.devices import devices_json, format_devices, run
from unicorn_async.cli.npu_facts import NpuFacts
from unicorn_async.npu.geometry import NPU1

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_each_device_has_its_index_and_name() -> None:
    text = format_devices([SOFTWARE, INTEGRATED, DISCRETE])
    assert "0: llvmpipe" in text
    assert "1: AMD Radeon 780M" in text
    assert "integrated GPU" in text
    assert "28.0 GiB available of 30.0 GiB" in text


def test_a_software_device_is_called_so() -> None:
    assert "SOFTWARE" in format_devices([SOFTWARE])
    assert "SOFTWARE" not in format_devices([DISCRETE])


def test_each_heap_is_listed() -> None:
    text = format_devices([DISCRETE])
    assert "heap 0        8.0 GiB, device-local; 6.0 GiB available (1.0 GiB used of a budget of 7.0 GiB)" in text
    assert "heap 1        32.0 GiB, host; 32.0 GiB available" in text


def test_matrix_shapes_are_listed_by_their_types() -> None:
    small = replace(INTEGRATED.cooperative_matrix[0], n=8)
    text = format_devices([replace(INTEGRATED, cooperative_matrix=(*INTEGRATED.cooperative_matrix, small))])
    assert "matrix        16×16×16, 16×8×16 of f16 × f16 + f32 → f32, subgroup" in text
    assert "matrix        none" in format_devices([SOFTWARE])


def test_an_amd_gpu_whose_driver_is_too_old_for_matrices_gets_advice() -> None:
    bare = replace(INTEGRATED, cooperative_matrix=(), driver_version=22 << 22 | 3 << 12 | 6)
    assert "Debian 12: mesa-vulkan-drivers of bookworm-backports" in format_devices([bare])
    newer = replace(bare, driver_version=23 << 22 | 3 << 12)
    others = replace(bare, driver_name="AMD proprietary driver"), replace(bare, vendor_id=0x8086), INTEGRATED, SOFTWARE
    assert "advice" not in format_devices([newer, *others])


def test_a_device_that_cannot_be_used_says_why() -> None:
    assert "lacks synchronization2" in format_devices([replace(DISCRETE, missing=("synchronization2",))])


def test_no_devices() -> None:
    assert format_devices([]) == "no Vulkan device found"


def test_the_json_is_an_array_of_everything() -> None:
    parsed = json.loads(devices_json([SOFTWARE, DISCRETE]))
    assert [device["index"] for device in parsed] == [0, 2]
    assert parsed[1]["subgroup_size"] == 64


def test_an_npu_is_listed_with_its_kernels(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    facts = NpuFacts.of(machine.host(), tmp_path / "builds")
    assert facts is not None
    assert "AMD NPU npu1\n" in facts.text()
    assert "PCI           1022:1502 at 0000:c4:00.1" in facts.text()
    assert "kernels       none; `unicorn npu build`" in facts.text()
    assert "not tried" not in facts.text()
    write_build(tmp_path / "builds", NPU1, 64)
    write_build(tmp_path / "builds", NPU1, 128)
    facts = NpuFacts.of(machine.host(), tmp_path / "builds")
    assert facts is not None
    assert "kernels       for a head_dim of 64, 128" in facts.text()
    assert "not tried     `unicorn npu doctor`" in facts.text()
    parsed = json.loads(devices_json([SOFTWARE], facts))
    assert [device["type"] for device in parsed] == ["software", "npu"]
    assert (parsed[1]["problems"], parsed[1]["kernels"]) == ([], [64, 128])


def test_the_command_lists_an_npu_in_its_json_and_leaves_it_out_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(machine: Machine) -> list[str]:
        monkeypatch.setattr("unicorn_async.cli.devices.NpuHost", machine.host)
        assert run(argparse.Namespace(json=True)) == 0
        return [device["type"] for device in json.loads(capsys.readouterr().out)]

    without = listed(Machine(tmp_path / "without", replace(NPU1, pci_device="0x14e8")))
    assert "npu" not in without
    assert listed(Machine(tmp_path / "with")) == [*without, "npu"]


def test_an_npu_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    machine.remove("sys/module/amdxdna")
    facts = NpuFacts.of(machine.host(), tmp_path)
    assert facts is not None
    assert "can't be used the kernel (7.0.0-14-generic) has not loaded amdxdna" in facts.text()
    assert [problem["check"] for problem in facts.to_json()["problems"]] == ["driver"]


def test_a_machine_without_an_npu_has_no_facts(tmp_path: Path) -> None:
    assert NpuFacts.of(Machine(tmp_path, replace(NPU1, pci_device="0x14e8")).host(), tmp_path) is None
