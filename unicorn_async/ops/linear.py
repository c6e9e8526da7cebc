"""Linear layers: y = x · W^T + bias, optionally soft-capped.

    half = reads_half(info, num_tokens)
    if half:
        row_to_half(recorder, kernels, info, x=x, scratch=scratch, num_tokens=num_tokens, k=k); recorder.barrier()
    linear(recorder, kernels, info, x=x, weight=w, out_address=y, num_tokens=num_tokens, scratch=scratch)

Several linears of the same input share one `row_to_half`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.linear_plan import (
    MAX_PARTIALS,
    MAX_SPLIT_TILES,
    LinearPlan,
    known_subgroup_size,
    pipelines_for,
    plan_linear,
    reads_half,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.config import Activation
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import KernelLibrary
    from unicorn_async.tensor import DType, Tensor

_ROW_TO_HALF_LANES = 256
_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class LinearScratch:
    """Activations in half precision, `halves` (tokens, k) f16, and their rows' `scales` (tokens) f32, by address.

    `partials` and `counters` are for workgroups that share K. The memory is the caller's, and holds one input at a
    time; linears that use it must not run side by side.
    """

    halves: int
    scales: int
    partials: int
    counters: int
    max_tokens: int
    max_k: int

    @staticmethod
    def size(max_tokens: int, max_k: int) -> int:
        """Bytes that inputs of up to (max_tokens, max_k) need."""
        return sum(LinearScratch._sizes(max_tokens, max_k))

    @classmethod
    def at(cls, address: int, max_tokens: int, max_k: int) -> LinearScratch:
        """Lay a scratch out in `size(max_tokens, max_k)` bytes at an address aligned to 16 bytes."""
        halves, scales, partials, counters = accumulate(cls._sizes(max_tokens, max_k)[:-1], initial=address)
        return cls(halves, scales, partials, counters, max_tokens, max_k)

    @staticmethod
    def _sizes(max_tokens: int, max_k: int) -> tuple[int, int, int, int]:
        return _aligned(max_tokens * max_k * 2), _aligned(max_tokens * 4), MAX_PARTIALS * 4, MAX_SPLIT_TILES * 4


def linear(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    info: DeviceInfo,
    *,
    x: Tensor | int,
    weight: Tensor,
    out_address: int,
    num_tokens: int,
    bias: Tensor | int | None = None,
    soft_cap: float = 0.0,
    scratch: LinearScratch | None = None,
    activation: Activation | None = None,
) -> None:
    """Record y (num_tokens, n) f32 = x (num_tokens, k) f32 · weight (n, k)^T, plus bias (n) f32, then soft-capped.

    With an `activation`, where `fuses_gate` allows it, the output is (num_tokens, n / 2): act of y's first half of
    columns, times the second.
    Addresses: `x` aligned to 16 bytes, the others to 4. Where `reads_half` says so, `scratch` holds the input by an
    earlier `row_to_half`, and `x` itself is not read. The caller records the barriers.

    Raises:
        UnsupportedModelError: the weights have a shape or type that no kernel takes.
    """
    if len(weight.shape) != 2:
        raise UnsupportedModelError(f"linear: weights have shape {weight.shape}, expected two dimensions")
    n, k = weight.shape
    plan = plan_linear(
        info,
        num_tokens=num_tokens,
        n=n,
        k=k,
        dtype=weight.dtype,
        has_bias=bias is not None,
        has_soft_cap=soft_cap > 0.0,
        activation=activation,
    )
    dispatch_plan(
        recorder,
        kernels,
        plan,
        x=x,
        weight=weight,
        out_address=out_address,
        num_tokens=num_tokens,
        bias=bias,
        soft_cap=soft_cap,
        scratch=scratch,
    )


def dispatch_plan(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    plan: LinearPlan,
    *,
    x: Tensor | int,
    weight: Tensor,
    out_address: int,
    num_tokens: int,
    bias: Tensor | int | None = None,
    soft_cap: float = 0.0,
    scratch: LinearScratch | None = None,
) -> None:
    """Record a linear by a plan that the caller chose; arguments as for `linear`."""
    n, k = weight.shape
    fields: dict[str, int | float] = {
        "weight": weight.address,
        "bias": 0 if bias is None else _address(bias),
        "y": out_address,
        "tokens": num_tokens,
        "n": n,
        "k": k,
        "soft_cap": soft_cap,
    }
    if plan.reads_half:
        room = _checked(scratch, num_tokens, k)
        fields |= {"xh": room.halves, "scale": room.scales, "partials": room.partials, "counters": room.counters}
    else:
        fields["x"] = _address(x)
    kernel = kernels.get(plan.entry, constants=dict(plan.constants), subgroup_size=plan.subgroup_size)
    recorder.dispatch(kernel, kernel.pack(**fields), *plan.grid)


def row_to_half(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    info: DeviceInfo,
    *,
    x: Tensor | int,
    scratch: LinearScratch,
    num_tokens: int,
    k: int,
) -> None:
    """Record bringing x (num_tokens, k) f32 into half precision, each row divided by a power of two of its own."""
    room = _checked(scratch, num_tokens, k)
    kernel = kernels.get("row_to_half", constants=_row_to_half_constants(info))
    push = kernel.pack(
        x=_address(x),
        xh=room.halves,
        scale=room.scales,
        counters=room.counters,
        k=k,
        num_counters=MAX_SPLIT_TILES,
    )
    recorder.dispatch(kernel, push, num_tokens)


def kernels_for(
    info: DeviceInfo,
    *,
    num_tokens: Iterable[int],
    n: int,
    k: int,
    dtype: DType,
    has_bias: bool = False,
    has_soft_cap: bool = False,
    activation: Activation | None = None,
) -> tuple[KernelRequest, ...]:
    """List the pipelines that steps of these sizes want, for `KernelLibrary.prepare`.

    An `activation` is applied by those sizes for which `fuses_gate` allows it.
    """
    sizes = tuple(num_tokens)
    plans = pipelines_for(
        info,
        num_tokens=sizes,
        n=n,
        k=k,
        dtype=dtype,
        has_bias=has_bias,
        has_soft_cap=has_soft_cap,
        activation=activation,
    )
    wanted = [KernelRequest(plan.entry, dict(plan.constants), plan.subgroup_size) for plan in plans]
    if any(reads_half(info, size) for size in sizes):
        wanted.append(KernelRequest("row_to_half", _row_to_half_constants(info)))
    return tuple(wanted)


def _row_to_half_constants(info: DeviceInfo) -> dict[str, int | bool]:
    lanes = min(_ROW_TO_HALF_LANES, info.max_workgroup_invocations)
    return {"WORKGROUP": lanes, "MAX_SUBGROUPS": -(-lanes // known_subgroup_size(info))}


def _checked(scratch: LinearScratch | None, num_tokens: int, k: int) -> LinearScratch:
    if scratch is None or num_tokens * k > scratch.max_tokens * scratch.max_k or num_tokens > scratch.max_tokens:
        room = "none" if scratch is None else f"one for ({scratch.max_tokens}, {scratch.max_k})"
        raise ValueError(f"linear: an input of ({num_tokens}, {k}) needs a scratch, got {room}")
    return scratch


def _address(where: Tensor | int) -> int:
    return where if isinstance(where, int) else where.address


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
