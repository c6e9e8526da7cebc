"""Brings new keys and values into a paged cache that another device's rotary kernel could not reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.config import KVDType
from unicorn_async.gpu.kernel import KernelRequest
from unicorn_async.ops.kv_cache import head_nbytes

if TYPE_CHECKING:
    from unicorn_async.gpu.recorder import Kernels, Recorder
    from unicorn_async.ops.kv_cache import AttentionShape, KVCache

_WORD_BYTES = 16


def kv_append_kernel(shape: AttentionShape) -> KernelRequest:
    """Name the pipeline that `kv_append` uses."""
    constants = {"WORKGROUP": 32, "BLOCK_SIZE": shape.block_size}
    if shape.kv_dtype is KVDType.INT8:
        return KernelRequest("kv_append_int8", {**constants, "HEAD_DIM": shape.head_dim})
    words = head_nbytes(shape.head_dim, shape.kv_dtype) // _WORD_BYTES  # 8 elements are at least 16 bytes
    return KernelRequest("kv_append", {**constants, "HEAD_WORDS": words})


def kv_append(
    recorder: Recorder,
    kernels: Kernels,
    *,
    shape: AttentionShape,
    new: KVCache,
    cache: KVCache,
    slot_mapping: int,
    num_tokens: int,
) -> None:
    """Record the copy of `num_tokens` tokens from `new` to their slots of `cache`.

    Keys and values of `new` are (tokens, num_kv_heads, head_dim) in the cache's type, f16 for a cache of int8; `cache`
    has the layout of `shape`. `slot_mapping` is the address of (tokens) u32, where NO_SLOT copies nothing.
    """
    request = kv_append_kernel(shape)
    kernel = kernels.get(request.name, constants=request.constants)
    push = kernel.pack(k_new=new.k, v_new=new.v, k_cache=cache.k, v_cache=cache.v, slot_mapping=slot_mapping)
    recorder.dispatch(kernel, push, shape.num_kv_heads, num_tokens)
