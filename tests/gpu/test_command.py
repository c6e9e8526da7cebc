from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.errors import ConfigError, DeviceError
from unicorn_async.gpu.command import CommandPool, TimestampPool
from unicorn_async.gpu.memory import Buffer, MemoryKind
from unicorn_async.gpu.queue import Submission
from unicorn_async.gpu.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device

N = 1000


def floats(buffer: Buffer) -> npt.NDArray[np.float32]:
    assert buffer.mapped is not None
    return np.frombuffer(buffer.mapped, np.float32)


@pytest.fixture
def pool(toy: Device) -> Iterator[CommandPool]:
    """A pool for the compute queue."""
    made = CommandPool(toy, toy.compute)
    yield made
    made.close()
    made.close()


@pytest.fixture
def x(toy: Device) -> Iterator[Buffer]:
    """N floats, 0, 1, 2, …"""
    buffer = toy.memory.allocate(N * 4, MemoryKind.STAGING, name="x")
    floats(buffer)[:] = np.arange(N)
    yield buffer
    buffer.close()


@pytest.fixture
def y(toy: Device) -> Iterator[Buffer]:
    """N floats, not a number."""
    buffer = toy.memory.allocate(N * 4, MemoryKind.STAGING, name="y")
    floats(buffer)[:] = np.nan
    yield buffer
    buffer.close()


def run(toy: Device, recorder: CommandRecorder) -> None:
    recorder.host_barrier()
    toy.compute.timeline.wait(toy.compute.submit([recorder.end()]), timeout_s=30)


def test_a_dispatch_runs_the_kernel_with_its_push_constants(
    toy: Device, pool: CommandPool, x: Buffer, y: Buffer
) -> None:
    kernel = toy.kernels.get("scale_add", constants={"SCALE": 2.0})
    recorder = pool.recorder()
    recorder.dispatch(kernel, kernel.pack(x=x.address, y=y.address, n=N, add=0.5), -(-N // 64))
    run(toy, recorder)
    np.testing.assert_array_equal(floats(y), np.arange(N) * 2 + 0.5)


def test_a_barrier_orders_dependent_dispatches(toy: Device, pool: CommandPool, x: Buffer, y: Buffer) -> None:
    add, negate = toy.kernels.get("scale_add"), toy.kernels.get("scale_add", constants={"NEGATE": True})
    recorder = pool.recorder()
    recorder.dispatch(add, add.pack(x=x.address, y=y.address, n=N, add=1), -(-N // 64))
    for _ in range(10):
        recorder.barrier()
        recorder.dispatch(negate, negate.pack(x=y.address, y=y.address, n=N, add=1), -(-N // 64))
        recorder.barrier()
        recorder.dispatch(add, add.pack(x=y.address, y=y.address, n=N, add=1), -(-N // 64))
    run(toy, recorder)
    np.testing.assert_array_equal(floats(y), np.arange(N) + 1)


def test_recorded_commands_run_again_with_what_memory_holds_then(
    toy: Device, pool: CommandPool, x: Buffer, y: Buffer
) -> None:
    kernel = toy.kernels.get("scale_add")
    recorder = pool.recorder()
    recorder.dispatch(kernel, kernel.pack(x=x.address, y=y.address, n=N, add=0), -(-N // 64))
    recorder.host_barrier()
    commands = recorder.end()
    for value in (1.0, 2.0):
        floats(x)[:] = value
        toy.compute.timeline.wait(toy.compute.submit([commands]), timeout_s=30)
        assert set(floats(y)) == {value}


def test_what_is_recorded_from_a_shared_pool_may_be_pending_twice(toy: Device, x: Buffer, y: Buffer) -> None:
    kernel, gate = toy.kernels.get("scale_add"), Timeline(toy, name="gate")
    pool = CommandPool(toy, toy.compute, shared=True)
    recorder = pool.recorder()
    recorder.dispatch(kernel, kernel.pack(x=x.address, y=y.address, n=N, add=0), -(-N // 64))
    recorder.host_barrier()
    commands = recorder.end()
    values = [toy.compute.submit([commands], waits=[(gate, 1)]) for _ in range(2)]
    gate.signal(1)
    toy.compute.timeline.wait(values[-1], timeout_s=30)
    assert (floats(y) == floats(x)).all()
    pool.close()
    gate.close()


def test_a_command_buffer_is_recorded_anew_in_its_place(toy: Device, pool: CommandPool, y: Buffer) -> None:
    recorder = pool.recorder()
    recorder.fill(y, 0, N * 4, 0)
    first = recorder.end()
    recorder = pool.recorder(first)
    recorder.fill(y, 0, N * 4, struct.unpack("<I", struct.pack("<f", 7.0))[0])
    run(toy, recorder)
    assert set(floats(y)) == {7.0}
    pool.free(first)


def test_an_indirect_dispatch_takes_its_size_from_memory(toy: Device, pool: CommandPool, x: Buffer, y: Buffer) -> None:
    kernel = toy.kernels.get("scale_add")
    sizes = toy.memory.allocate(64, MemoryKind.ARGUMENTS, name="sizes")
    assert sizes.mapped is not None
    sizes.mapped[16:28] = struct.pack("<3I", 2, 1, 1)
    recorder = pool.recorder()
    recorder.dispatch_indirect(kernel, kernel.pack(x=x.address, y=y.address, n=N, add=0), sizes, 16)
    run(toy, recorder)
    assert np.isfinite(floats(y)).sum() == 128
    sizes.close()


def test_a_copy_moves_the_range_and_nothing_else(toy: Device, pool: CommandPool, x: Buffer, y: Buffer) -> None:
    recorder = pool.recorder()
    recorder.copy(x, 40, y, 400, 80)
    run(toy, recorder)
    np.testing.assert_array_equal(floats(y)[100:120], np.arange(10, 30))
    assert np.isnan(floats(y)).sum() == N - 20


@pytest.mark.parametrize(
    ("src_offset", "dst_offset", "nbytes"), [(0, 0, 4 * N + 1), (4, 0, 4 * N), (0, 4, 4 * N), (-4, 0, 8), (0, 0, 0)]
)
def test_a_copy_outside_of_a_buffer_is_refused(
    pool: CommandPool, x: Buffer, y: Buffer, src_offset: int, dst_offset: int, nbytes: int
) -> None:
    recorder = pool.recorder()
    with pytest.raises(ConfigError, match=f"copy: {nbytes} bytes at .* which has {4 * N}"):
        recorder.copy(x, src_offset, y, dst_offset, nbytes)
    recorder.end()


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 4 * N + 4), (2, 4), (0, 6), (0, 0)])
def test_a_fill_of_parts_of_words_or_outside_of_a_buffer_is_refused(
    pool: CommandPool, y: Buffer, offset: int, nbytes: int
) -> None:
    recorder = pool.recorder()
    with pytest.raises(ConfigError, match=f"fill: {nbytes} bytes at {offset} of y"):
        recorder.fill(y, offset, nbytes, 0)
    recorder.end()


def test_push_constants_of_another_size_are_refused(toy: Device, pool: CommandPool) -> None:
    recorder = pool.recorder()
    with pytest.raises(ConfigError, match="scale_add: expected 24 bytes of push constants, got 20"):
        recorder.dispatch(toy.kernels.get("scale_add"), bytes(20), 1)
    recorder.end()


def test_more_workgroups_than_the_device_starts_are_refused(toy: Device, pool: CommandPool) -> None:
    recorder = pool.recorder()
    with pytest.raises(DeviceError, match=r"scale_add: 1×\d+×1 workgroups"):
        recorder.dispatch(toy.kernels.get("scale_add"), bytes(24), 1, toy.info.max_workgroup_count[1] + 1)
    recorder.end()


def test_timestamps_grow_and_can_be_written_again(toy: Device, pool: CommandPool, x: Buffer, y: Buffer) -> None:
    stamps = TimestampPool(toy, 2)
    kernel = toy.kernels.get("scale_add")
    recorder = pool.recorder()
    recorder.timestamp(stamps, 0)
    recorder.dispatch(kernel, kernel.pack(x=x.address, y=y.address, n=N, add=0), -(-N // 64))
    recorder.barrier()
    recorder.timestamp(stamps, 1)
    commands, seen = recorder.end(), []
    for _ in range(2):
        toy.compute.timeline.wait(toy.compute.submit([commands]), timeout_s=30)
        seen += stamps.read(0, 2)
    assert seen == sorted(seen)
    assert seen[1] > seen[0]
    stamps.close()
    stamps.close()


def test_a_submission_waits_for_a_value_that_the_host_signals(toy: Device, pool: CommandPool, y: Buffer) -> None:
    gate = Timeline(toy, name="gate")
    recorder = pool.recorder()
    recorder.fill(y, 0, N * 4, 0)
    recorder.host_barrier()
    value = toy.compute.submit([recorder.end()], waits=[(gate, 3)])
    with pytest.raises(TimeoutError):
        toy.compute.timeline.wait(value, timeout_s=0.02)
    assert np.isnan(floats(y)).all()
    gate.signal(3)
    toy.compute.timeline.wait(value, timeout_s=30)
    assert (floats(y) == 0).all()
    gate.close()


def test_a_submission_of_many_buffers_runs_them_in_order(toy: Device, pool: CommandPool, x: Buffer, y: Buffer) -> None:
    kernel, commands = toy.kernels.get("scale_add"), []
    for index in range(50):
        recorder = pool.recorder()
        source = x if index == 0 else y
        recorder.dispatch(kernel, kernel.pack(x=source.address, y=y.address, n=N, add=1), -(-N // 64))
        recorder.barrier()
        commands.append(recorder.end())
    before = toy.compute.timeline.last_submitted
    value = toy.compute.submit(commands, waits=[(toy.compute.timeline, before)] * 10)
    assert value == before + 1
    toy.compute.timeline.wait(value, timeout_s=30)
    np.testing.assert_array_equal(floats(y), np.arange(N) + 50)


def test_several_submissions_of_one_call_run_in_order_with_values_and_waits_of_their_own(
    toy: Device, pool: CommandPool, y: Buffer
) -> None:
    gate, done = Timeline(toy, name="gate"), Timeline(toy, name="done")
    commands = []
    for value in range(2):
        recorder = pool.recorder()
        recorder.fill(y, 0, N * 4, value)
        recorder.host_barrier()
        commands.append(recorder.end())
    before = toy.compute.timeline.last_submitted
    values = toy.compute.submit_each(
        [Submission(commands[:1]), Submission(waits=[(gate, 2)], signals=[(done, 5)]), Submission(commands[1:])]
    )
    assert values == [before + 1, before + 2, before + 3]
    toy.compute.timeline.wait(values[0], timeout_s=30)
    with pytest.raises(TimeoutError):
        toy.compute.timeline.wait(values[1], timeout_s=0.02)
    assert (floats(y).view(np.uint32) == 0).all()
    gate.signal(2)
    toy.compute.timeline.wait(values[2], timeout_s=30)
    assert done.completed() == done.last_submitted == 5
    assert (floats(y).view(np.uint32) == 1).all()
    gate.close()
    done.close()


def test_an_empty_submission_signals_too(toy: Device) -> None:
    value = toy.compute.submit([])
    toy.compute.timeline.wait(value, timeout_s=30)
    assert toy.compute.timeline.completed() == value


async def test_completion_is_awaited(toy: Device, pool: CommandPool, y: Buffer) -> None:
    recorder = pool.recorder()
    recorder.fill(y, 0, N * 4, 0)
    recorder.host_barrier()
    await toy.compute.timeline.reached(toy.compute.submit([recorder.end()]))
    assert (floats(y) == 0).all()
