"""The kernel that multiplies by VK_NV_cooperative_matrix2, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.gpu.kernel import KernelRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matrix2.extension import FlexibleMatrixShape
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.kernel import KernelLibrary

SHADERS = Path(__file__).parent / "shaders"
_WHOLE_BLOCKS = 64  # columns, of which the kernel wants a multiple


@dataclass(frozen=True, slots=True)
class Matrix2Tile:
    """What a workgroup of matrix2_rate makes: `m` × `n` sums ("f16" or "f32") of `k` columns at a time.

    `unroll` of these steps are written out one after another.
    """

    sums: str
    m: int
    n: int
    k: int
    invocations: int
    unroll: int

    def fits(self, info: DeviceInfo, shapes: Iterable[FlexibleMatrixShape]) -> bool:
        """Whether a device that has these shapes multiplies such matrices of a workgroup."""
        return self.invocations <= info.max_workgroup_invocations and any(
            (shape.a, shape.b, shape.c, shape.result) == ("f16", "f16", self.sums, self.sums)
            and (shape.scope, shape.invocations) == ("workgroup", self.invocations)
            and shape.takes(self.m, self.n, self.k)
            for shape in shapes
        )

    def divides(self, m: int, n: int, k: int) -> bool:
        """Whether a product (m, k) · (n, k)^T is a whole number of these tiles."""
        return not (m % self.m or n % self.n or k % (self.k * self.unroll) or k % _WHOLE_BLOCKS)

    def request(self, *, from_memory: bool) -> KernelRequest:
        """The kernel that makes such tiles."""
        constants = {
            "WORKGROUP": self.invocations,
            "TILE_M": self.m,
            "TILE_N": self.n,
            "TILE_K": self.k,
            "UNROLL": self.unroll,
            "FROM_MEMORY": from_memory,
        }
        return KernelRequest(f"matrix2_rate_{self.sums}", constants)


def matrix2_rate(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    tile: Matrix2Tile,
    *,
    a: int,
    b: int,
    y: int,
    shape: tuple[int, int, int],
    rounds: int | None = None,
) -> int:
    """Record y (m, n) = a (m, k) · b (n, k)^T for `shape` (m, n, k); returns the number of floating-point operations.

    `a` and `b` are halves, `y` is of the type of the tile's sums. With `rounds` every tile's first `tile.k` columns are
    read once, and their product is added up `rounds` times: a rate of units that wait for no memory.

    The device must be one that the tile `fits`.

    Raises:
        ValueError: the product is no whole number of tiles, or the rounds of steps.
    """
    m, n, k = shape
    if not tile.divides(m, n, k) or (rounds or 0) % tile.unroll:
        raise ValueError(f"matrix2_rate: {shape}, {rounds} rounds: expected multiples of {tile}")
    request = tile.request(from_memory=rounds is None)
    kernel = kernels.get(request.name, constants=request.constants)
    columns = k if rounds is None else rounds * tile.k
    push = kernel.pack(a=a, b=b, y=y, m=m, n=n, k=k, steps=columns // (tile.k * tile.unroll))
    recorder.dispatch(kernel, push, m // tile.m, n // tile.n)
    return 2 * m * n * columns
