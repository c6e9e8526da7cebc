"""Whether lanes hold the parts of matrices that kernels without shared memory count on; only running it can tell."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.linear_plan import (
    FRAGMENTS_FEATURE,
    NARROW_FEATURE,
    NARROW_MATRIX_FEATURE,
    matrix_subgroup_size,
)

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device

_LANES = 32
_TIMEOUT_S = 30.0


def find_matrix_fragments(device: Device) -> None:
    """Add FRAGMENTS_FEATURE to the device's features where they are as linear_quant_fragments needs them.

    And NARROW_FEATURE where this goes for matrices of 8 tokens as well. It blocks for a small dispatch or two.
    VK_KHR_cooperative_matrix leaves to a driver which lane holds which element; the order looked for is that of
    NVIDIA's matrix instructions (PTX ISA, mma.m16n8k16).

    Raises:
        DeviceLostError: the device was lost meanwhile.
    """
    if matrix_subgroup_size(device.info) != _LANES or not _is_known(device, 16):
        return
    found = {FRAGMENTS_FEATURE}
    if NARROW_MATRIX_FEATURE in device.info.features and _is_known(device, 8):
        found.add(NARROW_FEATURE)
    device.info = replace(device.info, features=device.info.features | found)


def _is_known(device: Device, columns: int) -> bool:
    """Whether lanes hold what they should of matrices with so many columns."""
    kernel = device.kernels.get("matrix_fragments", constants={"COLUMNS": columns}, subgroup_size=_LANES)
    answers = device.memory.allocate(4 * _LANES, MemoryKind.ARGUMENTS, name="matrix_fragments")
    pool = CommandPool(device, device.compute)
    try:
        recorder = pool.recorder()
        recorder.dispatch(kernel, kernel.pack(answers=answers.address), 1)
        recorder.host_barrier()
        device.compute.timeline.wait(device.compute.submit([recorder.end()]), timeout_s=_TIMEOUT_S)
        assert answers.mapped is not None
        return all(struct.unpack(f"<{_LANES}I", answers.mapped[: 4 * _LANES]))
    finally:
        pool.close()
        answers.close()
