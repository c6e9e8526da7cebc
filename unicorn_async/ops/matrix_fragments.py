"""Whether lanes hold the parts of matrices that kernels without shared memory count on; only running it can tell."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.linear_plan import FRAGMENTS_FEATURE, matrix_subgroup_size

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device

_LANES = 32
_TIMEOUT_S = 30.0


def find_matrix_fragments(device: Device) -> None:
    """Add FRAGMENTS_FEATURE to the device's features where they are as linear_quant_fragments needs them.

    It blocks for a small dispatch. VK_KHR_cooperative_matrix leaves to a driver which lane holds which element; the
    order looked for is that of NVIDIA's matrix instructions (PTX ISA, mma.m16n8k16).

    Raises:
        DeviceLostError: the device was lost meanwhile.
    """
    info = device.info
    if matrix_subgroup_size(info) != _LANES:
        return
    kernel = device.kernels.get("matrix_fragments", subgroup_size=_LANES)
    answers = device.memory.allocate(4 * _LANES, MemoryKind.FRAME, name="matrix_fragments")
    pool = CommandPool(device, device.compute)
    try:
        recorder = pool.recorder()
        recorder.dispatch(kernel, kernel.pack(answers=answers.address), 1)
        recorder.host_barrier()
        device.compute.timeline.wait(device.compute.submit([recorder.end()]), timeout_s=_TIMEOUT_S)
        assert answers.mapped is not None
        if all(struct.unpack(f"<{_LANES}I", answers.mapped[: 4 * _LANES])):
            device.info = replace(info, features=info.features | {FRAGMENTS_FEATURE})
    finally:
        pool.close()
        answers.close()
