"""How a Vulkan device and the NPU hand over a half's q, k, v and result: here in memory that the host copies."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from unicorn_async.background import THREAD_BYTES, run_to_end
from unicorn_async.config import KVDType
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.convert import convert, convert_kernel
from unicorn_async.ops.kv_cache import AttentionShape, KVCache
from unicorn_async.step.mapped_arrays import Field, made_block
from unicorn_async.tensor import DType, aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.npu.attention import AttentionService
    from unicorn_async.npu.cache import NpuCache
    from unicorn_async.npu.packets import Bf16Bits
    from unicorn_async.npu.step import PreparedStep
    from unicorn_async.npu.work import AttentionHeads


class ExchangeRows(NamedTuple):
    """What the host copies from and to: q, k and v are (tokens, heads, head_dim) bf16, the result is f32."""

    q: Bf16Bits
    k: Bf16Bits
    v: Bf16Bits
    result: NDArray[np.float32]


def exchange_shape(heads: AttentionHeads) -> AttentionShape:
    """Return the shape in which the near device writes k and v: f32, a token to a block."""
    return AttentionShape(heads.num_heads, heads.num_kv_heads, heads.layout.head_dim, 1, KVDType.F32)


class NpuExchange(Protocol):
    """An `Exchange` whose far side is an NPU.

    `rotated` is the near device's memory with q, k and v; `is_shared` says which kind of steps is wanted.
    """

    q: int
    new_kv: KVCache
    nbytes: int
    rotated: Buffer
    is_shared: bool

    def begin(self, turn: int, steps: Sequence[PreparedStep], slots: Sequence[NDArray[np.int64]]) -> None:
        """Take in where a pass's tokens go, by block group; the turn's pass before this one is done."""

    def record_filled(self, recorder: CommandRecorder, num_tokens: int, *, turn: int, layer: int) -> None:
        """See `Exchange`."""

    def record_result(
        self, recorder: CommandRecorder, num_tokens: int, attended: ArenaSlice, *, turn: int, layer: int
    ) -> None:
        """See `Exchange`."""

    async def store(self, cache: NpuCache, slots: NDArray[np.int64]) -> None:
        """Have the new keys and values in a layer's cache, where the NPU sees them."""

    async def attend(self, npu: AttentionService, step: PreparedStep, cache: NpuCache) -> None:
        """Have the NPU attend with a layer's cache; raises as `AttentionService.submit`."""

    def close(self) -> None:
        """Free the memory; a second call does nothing."""


def exchange_bytes(heads: AttentionHeads, max_tokens: int) -> int:
    """Return the memory that a half's exchange takes for so many tokens."""
    fields = _fields(heads, max_tokens).values()
    return _offsets(heads, max_tokens)[2] + sum(aligned(field.nbytes) for field in fields)


class RotatedMemory:
    """Memory of the near device for what its rotary kernel writes, f32: `q`, and `new_kv` with k and v."""

    def __init__(self, near: Device, heads: AttentionHeads, max_tokens: int, *, name: str) -> None:
        """Allocate.

        Raises:
            OutOfMemoryError: there is not so much memory.
        """
        k_offset, v_offset, nbytes = _offsets(heads, max_tokens)
        self.buffer = near.memory.allocate(nbytes, MemoryKind.DEVICE, name=f"{name}: rotated")
        self.q = self.buffer.address
        self.new_kv = KVCache(self.q + k_offset, self.q + v_offset)


class CopiedExchange:
    """One half's exchange memory; an `NpuExchange`. Close it when the near device does not use it any more.

    The rotary kernel writes f32 into the device's memory; from there the device itself rounds to bf16 into mapped
    memory, so that the host has nothing to compute.
    """

    def __init__(self, near: Device, heads: AttentionHeads, max_tokens: int, *, name: str) -> None:
        """Allocate.

        Raises:
            OutOfMemoryError: there is not so much memory.
        """
        self.is_shared = False
        self._kernels = near.kernels
        self._row_elements = (_elements(heads.num_heads, heads), _elements(heads.num_kv_heads, heads))
        with contextlib.ExitStack() as made:
            rotated = RotatedMemory(near, heads, max_tokens, name=name)
            made.callback(rotated.buffer.close)
            self._block = made_block(made, near, _fields(heads, max_tokens), MemoryKind.STAGING, name)
            self._made = made.pop_all()
        self.q, self.new_kv, self.rotated = rotated.q, rotated.new_kv, rotated.buffer
        self.nbytes = rotated.buffer.nbytes + self._block.buffer.nbytes
        self._block.arrays["result"][:] = 0  # rows of padding stay so

    @staticmethod
    def kernels() -> tuple[KernelRequest, ...]:
        """Name the pipelines that `record_filled` uses."""
        return (convert_kernel(DType.F32, DType.BF16),)

    def begin(self, turn: int, steps: Sequence[PreparedStep], slots: Sequence[NDArray[np.int64]]) -> None:
        """See `NpuExchange`: rows are in the tokens' order."""

    def record_filled(self, recorder: CommandRecorder, num_tokens: int, *, turn: int, layer: int) -> None:
        """See `Exchange`: rounds q, k and v to bf16; what leads here ends with a barrier."""
        del turn, layer
        address, (q_elements, kv_elements) = self._block.address, self._row_elements
        for source, name, elements in (
            (self.q, "q", q_elements),
            (self.new_kv.k, "k", kv_elements),
            (self.new_kv.v, "v", kv_elements),
        ):
            convert(
                recorder,
                self._kernels,
                src=source,
                src_dtype=DType.F32,
                dst=address[name],
                dst_dtype=DType.BF16,
                num_elements=num_tokens * elements,
            )
        recorder.host_barrier()

    def record_result(
        self, recorder: CommandRecorder, num_tokens: int, attended: ArenaSlice, *, turn: int, layer: int
    ) -> None:
        """See `Exchange`."""
        del turn, layer
        source, nbytes = self._block, num_tokens * self._row_elements[0] * DType.F32.itemsize
        recorder.copy(source.buffer, source.offset["result"], attended.buffer, attended.offset, nbytes)

    async def store(self, cache: NpuCache, slots: NDArray[np.int64]) -> None:
        """See `NpuExchange`."""
        rows = self.rows(len(slots))
        if rows.k.nbytes + rows.v.nbytes < THREAD_BYTES:
            cache.write(rows.k, rows.v, slots)
        else:
            await run_to_end(lambda: cache.write(rows.k, rows.v, slots))

    async def attend(self, npu: AttentionService, step: PreparedStep, cache: NpuCache) -> None:
        """See `NpuExchange`; rows of padding are not handed to the NPU."""
        rows = self.rows(step.num_tokens)
        await npu.submit(step, q=rows.q, cache=cache, out=rows.result)

    def rows(self, num_tokens: int) -> ExchangeRows:
        """Return the first rows, as the host sees them; no view may outlive the exchange."""
        return ExchangeRows(*(self._block.arrays[name][:num_tokens] for name in ExchangeRows._fields))

    def close(self) -> None:
        """Free the memory; a second call does nothing."""
        self._made.close()


def _fields(heads: AttentionHeads, max_tokens: int) -> dict[str, Field]:
    dim = heads.layout.head_dim
    queries, keys = (max_tokens, heads.num_heads, dim), (max_tokens, heads.num_kv_heads, dim)
    return {
        "q": Field(np.uint16, queries),
        "k": Field(np.uint16, keys),
        "v": Field(np.uint16, keys),
        "result": Field(np.float32, queries),
    }


def _offsets(heads: AttentionHeads, max_tokens: int) -> tuple[int, int, int]:
    """Where k and v begin behind q, and where they end, in bytes."""
    itemsize = DType.F32.itemsize
    k_offset = aligned(max_tokens * _elements(heads.num_heads, heads) * itemsize)
    kv_bytes = aligned(max_tokens * _elements(heads.num_kv_heads, heads) * itemsize)
    return k_offset, k_offset + kv_bytes, k_offset + 2 * kv_bytes


def _elements(num_heads: int, heads: AttentionHeads) -> int:
    return num_heads * heads.layout.head_dim
