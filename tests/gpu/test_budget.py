"""What a model may take of a device's memory, for the heaps that drivers report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import ConfigError
from unicorn_async.gpu.budget import HeapKind, HeapLimits, heap_kinds, host_room, memory_budget
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.gpu.host import HostGraphics
from unicorn_async.gpu.host_memory import HostMemory

from .made_up import GIB, INTEL, NVIDIA_REBAR, NVIDIA_WINDOW, RADV_780M, RADV_DISCRETE, SOFTWARE

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.gpu.device_info import DeviceInfo

VRAM, GTT = HeapKind.VRAM, HeapKind.GTT
NO_LIMITS = HeapLimits()
HOST = 64 * GIB


@pytest.mark.parametrize(
    ("info", "kinds"),
    [
        (RADV_780M, (GTT, VRAM)),
        (NVIDIA_WINDOW, (VRAM, GTT, None)),
        (NVIDIA_REBAR, (VRAM, GTT)),
        (RADV_DISCRETE, (VRAM, GTT, None)),
        (INTEL, (VRAM,)),
        (SOFTWARE, (VRAM,)),
    ],
)
def test_a_window_into_vram_is_left_to_frames(info: DeviceInfo, kinds: tuple[HeapKind | None, ...]) -> None:
    assert heap_kinds(info) == kinds


@pytest.mark.parametrize(
    ("info", "vram", "gtt"),
    [
        (RADV_780M, 18.0, 9.0),
        (NVIDIA_WINDOW, 6.3, 0.0),
        (NVIDIA_REBAR, 6.3, 0.0),
        (RADV_DISCRETE, 6.3, 0.0),
        (INTEL, 9.0, 0.0),
        (SOFTWARE, 7.2, 0.0),
    ],
)
def test_a_tenth_of_what_is_free_is_left_alone(info: DeviceInfo, vram: float, gtt: float) -> None:
    room = memory_budget(info, NO_LIMITS, HOST)
    assert (room.vram, room.gtt) == (pytest.approx(vram * GIB), pytest.approx(gtt * GIB))
    assert room.total == room.vram + room.gtt
    assert room.is_shared == (info.type is not DeviceType.DISCRETE)


def test_heaps_of_an_apu_are_not_counted_beyond_the_memory_behind_them() -> None:
    room = memory_budget(RADV_780M, NO_LIMITS, 20 * GIB)
    assert room.total == 18 * GIB
    assert room.vram + room.gtt > room.total
    tight = memory_budget(RADV_780M, NO_LIMITS, 10 * GIB)
    assert (tight.total, tight.vram, tight.gtt) == (9 * GIB, 9 * GIB, pytest.approx(9 * GIB))


def test_one_heap_of_an_intel_gpu_is_bounded_by_the_hosts_free_memory() -> None:
    assert memory_budget(INTEL, NO_LIMITS, 5 * GIB).total == pytest.approx(4.5 * GIB)
    assert memory_budget(INTEL, NO_LIMITS, None).total == pytest.approx(9 * GIB)


def test_a_discrete_gpu_takes_host_memory_when_it_is_told_to() -> None:
    room = memory_budget(NVIDIA_WINDOW, HeapLimits(gtt=4 * GIB), HOST)
    assert (room.gtt, room.total, room.slow_gtt) == (4 * GIB, room.vram + 4 * GIB, True)
    assert memory_budget(NVIDIA_WINDOW, HeapLimits(gtt=40 * GIB), HOST).gtt == 32 * GIB
    assert memory_budget(NVIDIA_WINDOW, HeapLimits(gtt=40 * GIB), 10 * GIB).gtt == 9 * GIB


def test_a_limit_counts_as_it_stands_where_there_is_so_much() -> None:
    assert memory_budget(NVIDIA_REBAR, HeapLimits(vram=6 * GIB + GIB // 2), HOST).vram == 6 * GIB + GIB // 2
    assert memory_budget(NVIDIA_REBAR, HeapLimits(vram=100 * GIB), HOST).vram == 7 * GIB
    room = memory_budget(RADV_780M, HeapLimits(vram=2 * GIB, gtt=3 * GIB), HOST)
    assert (room.vram, room.gtt, room.total) == (2 * GIB, 3 * GIB, 5 * GIB)


@pytest.mark.parametrize("info", [INTEL, SOFTWARE])
def test_a_limit_for_a_heap_that_is_not_there_is_an_error(info: DeviceInfo) -> None:
    with pytest.raises(ConfigError, match=r"1073741824 bytes for GTT: .* one kind of memory alone"):
        memory_budget(info, HeapLimits(gtt=GIB), HOST)


def test_what_the_firmware_set_aside_for_an_apu_is_added_to_the_hosts_memory(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemAvailable: 1048576 kB\n")
    memory = HostMemory(meminfo, tmp_path / "none", tmp_path / "none")
    folder = tmp_path / "drm" / "card1" / "device"
    folder.mkdir(parents=True)
    for name, nbytes in (("vram_total", 4 * GIB), ("vram_used", GIB), ("gtt_total", 30 * GIB), ("gtt_used", 0)):
        (folder / f"mem_info_{name}").write_text(f"{nbytes}\n")
    graphics = HostGraphics(sys_drm=tmp_path / "drm")
    assert host_room(RADV_780M, memory, graphics) == 4 * GIB
    assert host_room(INTEL, memory, graphics) == GIB
    assert host_room(NVIDIA_REBAR, memory, graphics) == GIB
