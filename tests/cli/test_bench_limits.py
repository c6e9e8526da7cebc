from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import VALIDATION
from tests.gpu.made_up import DISCRETE, INTEGRATED
from unicorn_async.cli import bench_limits
from unicorn_async.cli.bench_limits import Limits, measure_limits, rounds_for
from unicorn_async.ops.subgroups import matrix_subgroup_size

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device


def test_limits_are_measured_for_what_the_device_has(device: Device) -> None:
    limits = measure_limits(str(device.info.index), validation=VALIDATION)
    assert limits.copy_bytes_per_s >= limits.command_bytes_per_s > 1e8 and limits.read_bytes_per_s > 1e8
    assert limits.fma_flops_per_s > 1e8
    has_matrices = matrix_subgroup_size(device.info) is not None
    assert (limits.matrix_flops_per_s > 0) == (limits.shared_flops_per_s > 0) == has_matrices
    assert limits.flops_per_s >= limits.fma_flops_per_s
    (line,) = limits.lines()
    assert f"GB/s (read and written, by {limits.copied_by})" in line and ("no matrix units" in line) == (
        not has_matrices
    )


def test_an_integrated_gpu_with_a_quarter_of_a_780m_s_units_is_done_within_a_second() -> None:
    runs, workgroups, flops = bench_limits._RUNS + 1, bench_limits._GPU_WORKGROUPS, 2 * 128 * 128 * 32
    slow = 0.5 * 16.6e12 / 4  # of the matrix rate, fed from shared memory
    assert runs * workgroups * flops * rounds_for(INTEGRATED) / slow < 1.1
    assert rounds_for(DISCRETE) > rounds_for(INTEGRATED)


def test_the_copy_is_the_faster_of_the_command_and_a_kernel() -> None:
    rates = {"read_bytes_per_s": 1e12, "fma_flops_per_s": 1e12, "matrix_flops_per_s": 0.0, "shared_flops_per_s": 0.0}
    by_kernel = Limits(copy_bytes_per_s=4e12, command_bytes_per_s=8e11, **rates)
    by_command = Limits(copy_bytes_per_s=4e12, command_bytes_per_s=4e12, **rates)
    assert (by_kernel.copied_by, by_command.copied_by) == ("a kernel", "the copy command")
    assert "copy 4,000.0 GB/s (read and written, by a kernel)" in by_kernel.lines()[0]


class Recorded:
    """What stands for a recorder, kernels and timestamps of dispatches that take 10 to 30 ns, the first one 100."""

    def __init__(self) -> None:
        self.moved = 0  # bytes that the last command reads

    def recorder(self) -> Recorded:
        return self

    def get(self, *_: object, **__: object) -> Recorded:
        return self

    def pack(self, *, n: int, **_: int) -> int:
        return 16 * n  # kernels count blocks

    def dispatch(self, _: object, nbytes: int, *__: int) -> None:
        self.moved = nbytes

    def copy(self, _: object, __: int, ___: object, ____: int, nbytes: int) -> None:
        self.moved = nbytes

    def read(self, _: int, num: int) -> list[int]:
        return [0, 100, 110, 120, 130, 150, 180, 210, 240][:num]

    def nothing(self, *_: object) -> int:
        return 0

    end = timestamp = barrier = submit = wait = nothing


@pytest.fixture
def bench() -> tuple[Any, Recorded]:
    """A bench of 4,096 bytes without a device, and what it records."""
    recorded, memory = Recorded(), SimpleNamespace(address=0)
    found: Any = bench_limits._Bench.__new__(bench_limits._Bench)
    found._nbytes = 4096
    found._source = found._target = found._sums = memory
    queue = SimpleNamespace(timeline=recorded, submit=recorded.nothing)
    found._device = SimpleNamespace(kernels=recorded, compute=queue)
    found._pool = found._stamps = recorded
    return found, recorded


@pytest.mark.parametrize(("name", "times"), [("_copy_command", 2), ("_copy_kernel", 2), ("_read", 1)])
def test_a_copy_counts_what_it_reads_and_writes_and_a_read_what_it_reads(
    name: str, times: int, bench: tuple[Any, Recorded]
) -> None:
    found, recorded = bench
    amount = getattr(found, name)(recorded)
    assert recorded.moved == 4096
    assert amount == times * 4096


def test_a_rate_is_the_amount_over_the_median_time_without_the_first_run(bench: tuple[Any, Recorded]) -> None:
    assert bench[0]._rate(lambda _: 500) == pytest.approx(500 / 20e-9)
