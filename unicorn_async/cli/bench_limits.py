"""What the device can do at all, measured: the rates that a model's kernels are compared with."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from unicorn_async.gpu.choice import select_device
from unicorn_async.gpu.command import CommandPool, TimestampPool
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.gpu.instance import Instance
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.rates import copy_rate, fma_rate, matrix_rate, read_rate
from unicorn_async.ops.subgroups import matrix_subgroup_size
from unicorn_async.resources import resource_dir
from unicorn_async.tune.random_memory import random_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device_info import DeviceInfo

_RUNS = 7  # that count, of each kernel
_GPU_BYTES, _SOFTWARE_BYTES = 1 << 30, 32 << 20  # that are read; no cache should hold them
_GPU_WORKGROUPS, _SOFTWARE_WORKGROUPS = 4096, 64
# By the first, an H200 is busy for 0.05 s, a Radeon 780M would be for 2 to 5; a driver resets a GPU after ten.
_GPU_ROUNDS, _INTEGRATED_ROUNDS, _SOFTWARE_ROUNDS = 1024, 64, 256
_SUM_LANES = 512  # of a workgroup, at most


@dataclass(frozen=True, slots=True)
class Limits:
    """Measured rates; bytes of a copy are those read and those written. 0 operations: the device has no such units.

    `copy_bytes_per_s` is the higher of `command_bytes_per_s`, of the device's copy command, and of what a kernel
    reaches: on some GPUs the command is much slower than their memory. `matrix_flops_per_s` are of matrix units fed
    from registers, `shared_flops_per_s` of the same fed from shared memory, `fma_flops_per_s` of single-precision
    lanes.
    """

    copy_bytes_per_s: float
    command_bytes_per_s: float
    read_bytes_per_s: float
    fma_flops_per_s: float
    matrix_flops_per_s: float
    shared_flops_per_s: float

    @property
    def flops_per_s(self) -> float:
        """The highest rate of operations."""
        return max(self.fma_flops_per_s, self.matrix_flops_per_s)

    @property
    def copied_by(self) -> str:
        """Name what reached the copy's rate."""
        return "the copy command" if self.command_bytes_per_s >= self.copy_bytes_per_s else "a kernel"

    def lines(self) -> list[str]:
        """Return them for people."""
        matrix = (
            f"matrix units {self.matrix_flops_per_s / 1e12:,.1f} TFLOP/s from registers,"
            f" {self.shared_flops_per_s / 1e12:,.1f} from shared memory"
            if self.matrix_flops_per_s
            else "no matrix units"
        )
        return [
            f"measured limits: copy {self.copy_bytes_per_s / 1e9:,.1f} GB/s (read and written, by {self.copied_by}),"
            f" read {self.read_bytes_per_s / 1e9:,.1f} GB/s; f32 {self.fma_flops_per_s / 1e12:,.3g} TFLOP/s, {matrix}"
        ]


def measure_limits(device: str | None, *, validation: bool = False) -> Limits:
    """Measure the device that is chosen as `select_device` does; it blocks, on GPUs for less than a second.

    Raises:
        DeviceError: there is no GPU, or no room for some memory.
        ConfigError: there is no such device.
    """
    with Instance.create(validation=validation) as instance:
        info = select_device(instance.devices(), device)
        with Device.open(instance, info, cache_dir=None, shader_dir=resource_dir("shaders")) as opened:
            return _Bench(opened).limits()


def rounds_for(info: DeviceInfo) -> int:
    """Rounds of products: enough for a device to settle, and few enough for it to be done within a second."""
    if info.is_software:
        return _SOFTWARE_ROUNDS
    return _INTEGRATED_ROUNDS if info.type is DeviceType.INTEGRATED else _GPU_ROUNDS


class _Bench:
    """Kernels on one device, each timed by the device's own clock; the device frees what it allocates."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pool = CommandPool(device, device.compute)
        self._stamps = TimestampPool(device, _RUNS + 2)
        software, memory = device.info.is_software, device.memory
        self._nbytes = _SOFTWARE_BYTES if software else min(_GPU_BYTES, device.info.available_bytes // 16 & ~0xFFFF)
        self._workgroups = _SOFTWARE_WORKGROUPS if software else _GPU_WORKGROUPS
        self._rounds = rounds_for(device.info)
        self._source = random_memory(self._pool, self._nbytes, name="from")
        self._target = memory.allocate(self._nbytes, MemoryKind.DEVICE, name="to")
        self._sums = memory.allocate(4 * _SUM_LANES * self._workgroups, MemoryKind.DEVICE, name="sums")

    def limits(self) -> Limits:
        """Measure everything, and free the memory."""
        try:
            matrix = shared = 0.0
            if matrix_subgroup_size(self._device.info) is not None:
                matrix, shared = self._rate(self._matrix), self._rate(self._shared_matrix)
            records = self._copy_command, self._copy_kernel, self._read, self._fma
            command, kernel, read, fma = (self._rate(record) for record in records)
            return Limits(max(command, kernel), command, read, fma, matrix, shared)
        finally:
            for thing in (self._source, self._target, self._sums, self._stamps, self._pool):
                thing.close()

    def _rate(self, record: Callable[[CommandRecorder], int]) -> float:
        """Return the median of amounts a second of what `record` records and tells the amount of."""
        recorder, amount = self._pool.recorder(), 0
        for index in range(_RUNS + 2):  # the first run wakes the device up
            recorder.timestamp(self._stamps, index)
            if index <= _RUNS:
                amount = record(recorder)
                recorder.barrier()
        self._device.compute.timeline.wait(self._device.compute.submit([recorder.end()]))
        times = self._stamps.read(0, _RUNS + 2)
        return amount / median(stop - start for start, stop in itertools.pairwise(times[1:])) * 1e9

    def _copy_command(self, recorder: CommandRecorder) -> int:
        recorder.copy(self._source, 0, self._target, 0, self._nbytes)
        return 2 * self._nbytes

    def _copy_kernel(self, recorder: CommandRecorder) -> int:
        source, target = self._source.address, self._target.address
        copy_rate(recorder, self._device.kernels, source=source, target=target, num_bytes=self._nbytes)
        return 2 * self._nbytes

    def _read(self, recorder: CommandRecorder) -> int:
        source, sink = self._source.address, self._sums.address
        read_rate(recorder, self._device.kernels, source=source, sink=sink, num_bytes=self._nbytes)
        return self._nbytes

    def _fma(self, recorder: CommandRecorder) -> int:
        source, sums = self._source.address, self._sums.address
        counts = {"workgroups": self._workgroups, "rounds": self._rounds}
        return fma_rate(recorder, self._device.kernels, source=source, sums=sums, **counts)

    def _matrix(self, recorder: CommandRecorder, *, from_shared: bool = False) -> int:
        return matrix_rate(
            recorder,
            self._device.kernels,
            self._device.info,
            source=self._source.address,
            sums=self._sums.address,
            workgroups=self._workgroups,
            rounds=self._rounds,
            from_shared=from_shared,
        )

    def _shared_matrix(self, recorder: CommandRecorder) -> int:
        return self._matrix(recorder, from_shared=True)
