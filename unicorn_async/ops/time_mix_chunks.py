"""RWKV-7's time mixing over long runs of tokens: a chunk at a time, whose tokens are computed beside each other.

Source: Parallelizing Linear Transformers with the Delta Rule over Sequence Length (arXiv 2406.06484), section 3, with a
decay for each element of a key; shaders/time_mix_chunk.comp has the formulas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.ops.chunk_cut import chunk_cut
from unicorn_async.ops.runs import SHORTEST_CHUNKED
from unicorn_async.ops.subgroups import asked_subgroup_size
from unicorn_async.tensor import DType, Tensor

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.chunk_cut import ChunkCut
    from unicorn_async.ops.time_mix import MixedRows, TimeMixShape

_VECTOR = 4
_WORKGROUP = 128  # of time_mix_chunk


def time_mix_chunk(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    shape: TimeMixShape,
    *,
    rows: MixedRows,
    runs: int,
    out: Tensor,
) -> None:
    """Record what `time_mix_chunks` needs of each chunk of a long run; `out` is (tokens, chunk_columns) f32.

    `rows` and `runs` are as for `time_mix`. In long runs w, a and direction of `rows` are replaced by what
    `time_mix_chunks` needs. Raises ConfigError for other shapes.
    """
    num_rows = rows.check("time_mix_chunk", shape)
    out.expect("time_mix_chunk: out", (num_rows, shape.chunk_columns), DType.F32)
    kernel = kernels.get(
        "time_mix_chunk", constants=_heads(shape) | {"WORKGROUP": _WORKGROUP}, subgroup_size=asked_subgroup_size(info)
    )
    push = kernel.pack(
        r=rows.r.address,
        w=rows.w.address,
        k=rows.k.address,
        direction=rows.direction.address,
        b=rows.a.address,
        runs=runs,
        chunks=out.address,
        num_rows=num_rows,
    )
    recorder.dispatch(kernel, push, shape.num_heads, -(-num_rows // SHORTEST_CHUNKED))


def time_mix_chunks(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    shape: TimeMixShape,
    *,
    rows: MixedRows,
    chunks: Tensor,
    state: int,
    runs: int,
    positions: int,
    out: Tensor,
    cut: ChunkCut | None = None,
) -> None:
    """Record what `time_mix` does for runs of SHORTEST_CHUNKED tokens and more, behind `time_mix_chunk` and a barrier.

    `rows` and `chunks` are what that leaves, `cut` is one of CUTS, or the rules' own, all else as for `time_mix`.
    Raises ConfigError for other shapes.
    """
    num_rows = rows.check("time_mix_chunks", shape)
    chunks.expect("time_mix_chunks: chunks", (num_rows, shape.chunk_columns), DType.F32)
    out.expect("time_mix_chunks: out", (num_rows, shape.columns), DType.F32)
    cut = cut or chunk_cut(info, shape.head_dim, shape.columns)
    kernel = kernels.get(
        "time_mix_chunks", constants=_heads(shape) | cut.constants, subgroup_size=asked_subgroup_size(info)
    )
    push = kernel.pack(
        w=rows.w.address,
        b=rows.a.address,
        x=rows.direction.address,
        v=rows.v.address,
        chunks=chunks.address,
        state=state,
        runs=runs,
        positions=positions,
        y=out.address,
        state_bytes=shape.state_bytes,
        state_offset=shape.matrices_offset,
        num_rows=num_rows,
    )
    num_tiles = shape.num_heads * -(-shape.head_dim // cut.columns)
    recorder.dispatch(kernel, push, num_tiles, -(-num_rows // SHORTEST_CHUNKED))


def _heads(shape: TimeMixShape) -> dict[str, int]:
    return {"KEY_VECTORS": shape.head_dim // _VECTOR, "HEADS": shape.num_heads}
