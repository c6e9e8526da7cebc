from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.gpu.timed_recorder import TimedRecorder

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device


def test_each_dispatch_has_its_kernel_its_push_block_and_its_time(device: Device) -> None:
    room = device.memory.allocate(4096, MemoryKind.DEVICE, name="room")
    sizes = device.memory.allocate(64, MemoryKind.ARGUMENTS, name="sizes")
    assert sizes.mapped is not None
    sizes.mapped[:12] = bytes([1, 0, 0, 0] * 3)
    kernel = device.kernels.get("gated_floats", constants={"WORKGROUP": 64, "ACT": 0})
    fields = {"gate_up": room.address, "y": room.address + 2048, "columns": 64}
    fields |= {"y_scale": 0, "counters": 0, "num_counters": 0}
    push = kernel.pack(**fields)
    pool = CommandPool(device, device.compute)
    recorder = TimedRecorder(pool, 2)
    recorder.dispatch(kernel, push, 1)
    recorder.barrier()
    recorder.dispatch_indirect(kernel, push, sizes, 0)
    device.compute.timeline.wait(device.compute.submit([recorder.end()]), timeout_s=30)
    times = recorder.times()
    assert [(time.kernel, time.push) for time in times] == [(kernel, push)] * 2
    assert [(time.groups, time.frame) for time in times] == [((1, 1, 1), None), ((1, 1, 1), sizes)]
    assert all(0 <= time.ns < 30e9 for time in times) and sum(time.ns for time in times) > 0
    assert kernel.push.unpack(times[0].push) == fields
    recorder.close()
    pool.close()
    sizes.close()
    room.close()
