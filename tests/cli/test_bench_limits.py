from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conftest import VALIDATION
from unicorn_async.cli.bench_limits import Limits, measure_limits
from unicorn_async.ops.linear_plan import matrix_subgroup_size

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


def test_the_copy_is_the_faster_of_the_command_and_a_kernel() -> None:
    rates = {"read_bytes_per_s": 1e12, "fma_flops_per_s": 1e12, "matrix_flops_per_s": 0.0, "shared_flops_per_s": 0.0}
    by_kernel = Limits(copy_bytes_per_s=4e12, command_bytes_per_s=8e11, **rates)
    by_command = Limits(copy_bytes_per_s=4e12, command_bytes_per_s=4e12, **rates)
    assert (by_kernel.copied_by, by_command.copied_by) == ("a kernel", "the copy command")
    assert "copy 4,000.0 GB/s (read and written, by a kernel)" in by_kernel.lines()[0]
