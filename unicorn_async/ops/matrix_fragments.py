"""Whether lanes hold the parts of matrices that kernels without shared memory count on; only running it can tell."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.subgroups import (
    FRAGMENTS_FEATURE,
    NARROW_FEATURE,
    NARROW_MATRIX_FEATURE,
    matrix_subgroup_size,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.gpu.device import Device

_LANES, _KEPT = 32, 8
_ROW = 16  # elements of a matrix's row
_TIMEOUT_S = 30.0


def find_matrix_fragments(device: Device) -> None:
    """Add FRAGMENTS_FEATURE to the device's features where they are as linear_quant_fragments needs them.

    And NARROW_FEATURE where this goes for matrices of 8 tokens as well. It blocks for a small dispatch or two.
    VK_KHR_cooperative_matrix leaves to a driver which lane holds which element; the order looked for is that of
    NVIDIA's matrix instructions (PTX ISA, mma.m16n8k16).

    Raises:
        DeviceLostError: the device was lost meanwhile.
    """
    if matrix_subgroup_size(device.info) != _LANES or not holds_fragments(read_lanes(device, 16), 16):
        return
    found = {FRAGMENTS_FEATURE}
    if NARROW_MATRIX_FEATURE in device.info.features and holds_fragments(read_lanes(device, 8), 8):
        found.add(NARROW_FEATURE)
    device.info = replace(device.info, features=device.info.features | found)


def holds_fragments(lanes: Sequence[Sequence[int]], columns: int) -> bool:
    """Whether lanes hold what linear_quant_fragments counts on, of a first factor and one of so many `columns`.

    `lanes` is (32, 18): of each lane how many elements it has of the factors, and eight of each by their indices in
    rows of 16. Lane 4 g + q has those of columns 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of row g, then of row g + 8, and of
    a second factor the same with rows and columns exchanged; of one with 8 columns, the first four.
    """
    num_second = columns // 2
    for lane, (length, other_length, *elements) in enumerate(lanes):
        places = [(lane // 4 + i // 4 * 8, lane % 4 * 2 + i % 2 + i // 2 % 2 * 8) for i in range(_KEPT)]
        first = [row * _ROW + column for row, column in places]
        second = [column * _ROW + row for row, column in places]
        is_right = elements[:_KEPT] == first and elements[_KEPT:][:num_second] == second[:num_second]
        if (length, other_length) != (_KEPT, num_second) or not is_right:
            return False
    return len(lanes) == _LANES


def read_lanes(device: Device, columns: int) -> list[list[int]]:
    """Ask the device which elements its lanes hold, as `holds_fragments` takes them; it blocks for a small dispatch.

    Raises:
        DeviceLostError: the device was lost meanwhile.
    """
    words = 2 + 2 * _KEPT
    kernel = device.kernels.get("matrix_fragments", constants={"COLUMNS": columns}, subgroup_size=_LANES)
    answers = device.memory.allocate(4 * words * _LANES, MemoryKind.ARGUMENTS, name="matrix_fragments")
    pool = CommandPool(device, device.compute)
    try:
        recorder = pool.recorder()
        recorder.dispatch(kernel, kernel.pack(answers=answers.address), 1)
        recorder.host_barrier()
        device.compute.timeline.wait(device.compute.submit([recorder.end()]), timeout_s=_TIMEOUT_S)
        assert answers.mapped is not None
        return [list(lane) for lane in struct.iter_unpack(f"<{words}I", answers.mapped[: 4 * words * _LANES])]
    finally:
        pool.close()
        answers.close()
