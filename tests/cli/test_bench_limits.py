from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conftest import VALIDATION
from unicorn_async.cli.bench_limits import measure_limits
from unicorn_async.ops.linear_plan import matrix_subgroup_size

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device


def test_limits_are_measured_for_what_the_device_has(device: Device) -> None:
    limits = measure_limits(str(device.info.index), validation=VALIDATION)
    assert limits.copy_bytes_per_s > 1e8 and limits.read_bytes_per_s > 1e8
    assert limits.fma_flops_per_s > 1e8
    has_matrices = matrix_subgroup_size(device.info) is not None
    assert (limits.matrix_flops_per_s > 0) == (limits.shared_flops_per_s > 0) == has_matrices
    assert limits.flops_per_s >= limits.fma_flops_per_s
    (line,) = limits.lines()
    assert "GB/s" in line and ("no matrix units" in line) == (not has_matrices)
