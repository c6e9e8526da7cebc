"""Moves a layer's queries, new keys and values, and results between a Vulkan device and an NPU, in memory of both.

The layouts are the NPU's kernels': what the host does in `unicorn_async.npu.packets` where there is no such memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.gpu.kernel import KernelRequest

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.kernel import KernelLibrary
    from unicorn_async.ops.kv_cache import KVCache

_WORKGROUP = 64
_NAMES = ("npu_queries", "npu_new_tokens", "npu_results")

# Of a token: the item of its first kv head, its first row there, elements of an item's results, its slot or NO_SLOT.
ROW = np.dtype([("item", np.uint32), ("first", np.uint32), ("stride", np.uint32), ("slot", np.uint32)])


@dataclass(frozen=True, slots=True)
class PacketShape:
    """What decides the NPU's layouts: `tile_n` rows, which are pairs of a query and a head, make a strip."""

    num_kv_heads: int
    group: int
    head_dim: int
    tile_n: int

    def kernels(self) -> tuple[KernelRequest, ...]:
        """Name the pipelines that the functions below use."""
        return tuple(map(self._request, _NAMES))

    def _request(self, name: str) -> KernelRequest:
        constants = {"WORKGROUP": _WORKGROUP, "HEAD_DIM": self.head_dim}
        if name != "npu_new_tokens":
            constants |= {"GROUP": self.group, "TILE_N": self.tile_n}
        return KernelRequest(name, constants)


def npu_queries(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    shape: PacketShape,
    *,
    q: int,
    rows: int,
    packets: int,
    num_tokens: int,
) -> None:
    """Record the rounding of rotated queries to bf16, into their items' packets, behind the parameters.

    `q` is the address of (tokens, num_heads * head_dim) f32, `rows` of (tokens) `ROW`, and `packets` of (items, 3
    buffers). Padding is left out.
    """
    _dispatch(recorder, kernels, shape, "npu_queries", num_tokens, q=q, rows=rows, packets=packets)


def npu_new_tokens(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    shape: PacketShape,
    *,
    new: KVCache,
    rows: int,
    cache: int,
    num_chunks: int,
    num_tokens: int,
) -> None:
    """Record the rounding of new keys and values to bf16, into their slots of a layer's cache on the NPU.

    Keys and values of `new` are (tokens, num_kv_heads, head_dim) f32, `rows` is the address of (tokens) `ROW`, and
    `cache` of (num_kv_heads, num_chunks, K then V). Padding is left out.
    """
    push = {"k": new.k, "v": new.v, "rows": rows, "cache": cache, "chunks": num_chunks}
    _dispatch(recorder, kernels, shape, "npu_new_tokens", num_tokens, **push)


def npu_results(
    recorder: CommandRecorder,
    kernels: KernelLibrary,
    shape: PacketShape,
    *,
    results: int,
    rows: int,
    attended: int,
    num_tokens: int,
) -> None:
    """Record the gathering of the NPU's results, (items, strips) f32, into (tokens, num_heads * head_dim) f32.

    `rows` is the address of (tokens) `ROW`. Rows of padding become zero.
    """
    _dispatch(recorder, kernels, shape, "npu_results", num_tokens, results=results, rows=rows, attended=attended)


def _dispatch(
    recorder: CommandRecorder, kernels: KernelLibrary, shape: PacketShape, name: str, num_tokens: int, **push: int
) -> None:
    request = shape._request(name)
    kernel = kernels.get(request.name, constants=request.constants)
    recorder.dispatch(kernel, kernel.pack(**push), shape.num_kv_heads, num_tokens)
