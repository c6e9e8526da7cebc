"""What a device can do at all: kernels that only read, only copy or only multiply, for others to be compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import MissingFeatureError
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.grid import split_grid
from unicorn_async.ops.subgroups import matrix_subgroup_size

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import KernelLibrary

_WORKGROUP = 256
_LOADS = 8  # blocks of 16 bytes that a lane reads
_COPIES = 4  # that it copies
_FMA_FLOPS = 8 * 4 * 2  # of a lane and round
_MATRIX_FLOPS = 2 * 128 * 128 * 32  # of a workgroup and round
_MATRIX_SUBGROUPS = 4


def read_rate(recorder: CommandRecorder, kernels: KernelLibrary, *, source: int, sink: int, num_bytes: int) -> None:
    """Record one read of `num_bytes` (a multiple of 16) at `source`; `sink` is the address of a u32."""
    kernel = kernels.get("read_rate", constants={"WORKGROUP": _WORKGROUP, "LOADS": _LOADS})
    push = kernel.pack(source=source, sink=sink, n=num_bytes // 16)
    x, y = split_grid(-(-num_bytes // (16 * _WORKGROUP * _LOADS)))
    recorder.dispatch(kernel, push, x, y)


def copy_rate(recorder: CommandRecorder, kernels: KernelLibrary, *, source: int, target: int, num_bytes: int) -> None:
    """Record one copy of `num_bytes` (a multiple of 16) from `source` to `target`, addresses of memory apart."""
    kernel = kernels.get("copy_rate", constants={"WORKGROUP": _WORKGROUP, "LOADS": _COPIES})
    push = kernel.pack(source=source, target=target, n=num_bytes // 16)
    x, y = split_grid(-(-num_bytes // (16 * _WORKGROUP * _COPIES)))
    recorder.dispatch(kernel, push, x, y)


def fma_rate(
    recorder: CommandRecorder, kernels: KernelLibrary, *, source: int, sums: int, workgroups: int, rounds: int
) -> int:
    """Record products and sums of single-precision numbers; returns the number of floating-point operations.

    `source` has at least 64 KiB of any finite numbers, `sums` room for 512 f32 a workgroup.
    """
    kernel = kernels.get("fma_rate", constants={"WORKGROUP": _WORKGROUP})
    recorder.dispatch(kernel, kernel.pack(source=source, sums=sums, rounds=rounds), workgroups)
    return workgroups * _WORKGROUP * _FMA_FLOPS * rounds


def matrix_rate(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    info: DeviceInfo,
    *,
    source: int,
    sums: int,
    workgroups: int,
    rounds: int,
    from_shared: bool,
) -> int:
    """Record products of half-precision matrices; returns the number of floating-point operations.

    Memory is as for `fma_rate`; `from_shared` loads the factors of every product from shared memory.

    Raises:
        MissingFeatureError: the device has no matrix units that the project's kernels can use.
    """
    request = matrix_rate_request(info, from_shared=from_shared)
    kernel = kernels.get(request.name, constants=request.constants, subgroup_size=request.subgroup_size)
    recorder.dispatch(kernel, kernel.pack(source=source, sums=sums, rounds=rounds), workgroups)
    return workgroups * _MATRIX_FLOPS * rounds


def matrix_rate_request(info: DeviceInfo, *, from_shared: bool) -> KernelRequest:
    """The kernel of `matrix_rate`; raises as that does."""
    subgroup_size = matrix_subgroup_size(info)
    if subgroup_size is None:
        raise MissingFeatureError(f"{info.name}: no 16×16×16 matrix products of halves")
    constants = {"WORKGROUP": _MATRIX_SUBGROUPS * subgroup_size, "FROM_SHARED": from_shared}
    wanted = subgroup_size if "subgroup_size_control" in info.features else None
    return KernelRequest("matrix_rate", constants, wanted)
