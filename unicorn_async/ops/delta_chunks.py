"""The gated delta rule over long runs of tokens: a chunk at a time, whose tokens are computed beside each other.

Source: Gated Delta Networks (arXiv 2412.06464), section 3.3; shaders/delta_chunk.comp has the formulas.
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
    from unicorn_async.ops.delta_rule import DeltaTokens

_VECTOR = 4
_WORKGROUP = 128  # of delta_chunk


def delta_chunk(recorder: Recorder, kernels: Kernels, info: DeviceInfo, tokens: DeltaTokens, *, out: Tensor) -> None:
    """Record what `delta_chunks` needs of each chunk of a long run; `out` is (tokens, chunk_columns) f32.

    Raises ConfigError for other shapes.
    """
    shape = tokens.shape
    tokens.expect("delta_chunk")
    out.expect("delta_chunk: out", (tokens.num_rows, shape.chunk_columns), DType.F32)
    constants = tokens.heads | {
        "WORKGROUP": _WORKGROUP,
        "KEY_VECTORS": shape.key_dim // _VECTOR,
        "RATES": shape.has_rates,
    }
    kernel = kernels.get("delta_chunk", constants=constants, subgroup_size=asked_subgroup_size(info))
    push = kernel.pack(**tokens.pushed_rows, **tokens.pushed_gates, chunks=out.address)
    recorder.dispatch(kernel, push, shape.num_value_heads, -(-tokens.num_rows // SHORTEST_CHUNKED))


def delta_chunks(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    tokens: DeltaTokens,
    *,
    chunks: Tensor,
    out: Tensor,
    cut: ChunkCut | None = None,
) -> None:
    """Record what `delta_rule` does for runs of SHORTEST_CHUNKED tokens and more, behind `delta_chunk` and a barrier.

    `chunks` is what that leaves, `out` as for `delta_rule`; `cut` is one of CUTS, or the rules' own. Raises ConfigError
    for other shapes.
    """
    shape = tokens.shape
    tokens.expect("delta_chunks")
    chunks.expect("delta_chunks: chunks", (tokens.num_rows, shape.chunk_columns), DType.F32)
    out.expect("delta_chunks: out", (tokens.num_rows, shape.value_columns), DType.F32)
    cut = cut or chunk_cut(info, shape.key_dim, shape.num_value_heads * shape.value_dim)
    constants = (
        tokens.heads
        | cut.constants
        | {
            "KEY_VECTORS": shape.key_dim // _VECTOR,
            "VALUE_VECTORS": shape.value_dim // _VECTOR,
        }
    )
    kernel = kernels.get("delta_chunks", constants=constants, subgroup_size=asked_subgroup_size(info))
    push = kernel.pack(**tokens.pushed_rows, **tokens.pushed_states, chunks=chunks.address, y=out.address)
    num_tiles = shape.num_value_heads * -(-shape.value_dim // cut.columns)
    recorder.dispatch(kernel, push, num_tiles, -(-tokens.num_rows // SHORTEST_CHUNKED))
