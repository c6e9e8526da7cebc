"""Mamba-2's recurrence over long runs of tokens: a chunk at a time, whose tokens are computed beside each other.

Source: Transformers are SSMs (arXiv 2405.21060), section 6; shaders/ssm_chunk.comp has the formulas.
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
    from unicorn_async.ops.state_space import SsmTokens

_VECTOR = 4
_WORKGROUP = 128  # of ssm_chunk


def ssm_chunk(recorder: Recorder, kernels: Kernels, info: DeviceInfo, tokens: SsmTokens, *, out: Tensor) -> None:
    """Record what `ssm_chunks` needs of each chunk of a long run; `out` is (tokens, chunk_columns) f32.

    Raises ConfigError for other shapes.
    """
    shape = tokens.shape
    tokens.expect("ssm_chunk")
    out.expect("ssm_chunk: out", (tokens.num_rows, shape.chunk_columns), DType.F32)
    constants = tokens.heads | _vectors(tokens) | {"WORKGROUP": _WORKGROUP, "RATES": shape.has_rates}
    kernel = kernels.get("ssm_chunk", constants=constants, subgroup_size=asked_subgroup_size(info))
    push = kernel.pack(
        **tokens.pushed_rows, **tokens.pushed_steps, chunks=out.address, left_bytes=4 * shape.chunk_columns
    )
    recorder.dispatch(kernel, push, shape.num_groups, -(-tokens.num_rows // SHORTEST_CHUNKED))


def ssm_chunks(
    recorder: Recorder,
    kernels: Kernels,
    info: DeviceInfo,
    tokens: SsmTokens,
    *,
    chunks: Tensor,
    out: Tensor,
    cut: ChunkCut | None = None,
) -> None:
    """Record what `ssm_scan` does for runs of SHORTEST_CHUNKED tokens and more, behind `ssm_chunk` and a barrier.

    `chunks` is what that leaves, `out` as for `ssm_scan`; `cut` is one of CUTS, or the rules' own. Raises ConfigError
    for other shapes.
    """
    shape = tokens.shape
    tokens.expect("ssm_chunks")
    chunks.expect("ssm_chunks: chunks", (tokens.num_rows, shape.chunk_columns), DType.F32)
    out.expect("ssm_chunks: out", (tokens.num_rows, shape.inner), DType.F32)
    cut = cut or chunk_cut(info, shape.state_dim, shape.inner)
    kernel = kernels.get(
        "ssm_chunks",
        constants=tokens.heads | cut.constants | _vectors(tokens),
        subgroup_size=asked_subgroup_size(info),
    )
    push = kernel.pack(
        **tokens.pushed_rows,
        **tokens.pushed_states,
        skips=tokens.skips.address,
        chunks=chunks.address,
        left_bytes=4 * shape.chunk_columns,
        y=out.address,
    )
    num_tiles = shape.num_heads * -(-shape.head_dim // cut.columns)
    recorder.dispatch(kernel, push, num_tiles, -(-tokens.num_rows // SHORTEST_CHUNKED))


def _vectors(tokens: SsmTokens) -> dict[str, int]:
    return {"KEY_VECTORS": tokens.shape.state_dim // _VECTOR, "VALUE_VECTORS": tokens.shape.head_dim // _VECTOR}
