"""How the memory for keys and values is divided into block groups.

Layers with the same window share a group. A sliding-window group keeps its window's blocks alone, so its pool is
bounded by sequences, not by context: Gemma 3 27B needs 11 GB instead of 67 at its full context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.config import KVDType
from unicorn_async.errors import ConfigError, OutOfMemoryError
from unicorn_async.scheduler.block_manager import BlockGroup, num_blocks_spanned

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.config import EngineConfig, ModelConfig


@dataclass(frozen=True, slots=True)
class KVPlan:
    """Pools of blocks, and which layer uses which.

    `layer_bytes` is the size of one layer's keys (its values take as much), by group.
    """

    groups: tuple[BlockGroup, ...]
    layer_group: tuple[int, ...]
    layer_bytes: tuple[int, ...]
    max_context: int
    nbytes: int


def plan_kv_cache(model: ModelConfig, options: EngineConfig, available_bytes: int) -> KVPlan:
    """Choose the pools' sizes for `available_bytes`, at most what all sequences need at full context.

    Raises:
        ConfigError: the asked-for context is longer than the model's.
        OutOfMemoryError: not even one block a group, or the asked-for context, fits.
    """
    windows = tuple(sorted(set(model.layer_windows)))
    layer_group = tuple(windows.index(window) for window in model.layer_windows)
    element = 2 if options.kv_dtype is KVDType.F16 else 4
    block_bytes = model.num_kv_heads * options.block_size * model.head_dim * element
    num_layers = tuple(layer_group.count(group) for group in range(len(windows)))
    wanted = options.max_context or model.max_position
    if wanted > model.max_position:
        raise ConfigError(f"max_context: the model has {model.max_position} positions, {wanted} are asked for")

    def pools(tokens: int) -> tuple[int, ...]:
        return tuple(_num_blocks(window, tokens, options) for window in windows)

    def nbytes(tokens: int) -> int:
        return sum(2 * block_bytes * n * blocks for n, blocks in zip(num_layers, pools(tokens), strict=True))

    budget = min(available_bytes, options.kv_cache_bytes or available_bytes)
    tokens = _largest(options.block_size, options.max_num_seqs * wanted, options.block_size, nbytes, budget)
    max_context = min(wanted, tokens)
    if tokens == 0 or (options.max_context and max_context < wanted):
        needed = nbytes(wanted if options.max_context else options.block_size)
        raise OutOfMemoryError(
            f"KV cache: a context of {wanted} tokens needs {needed:,} bytes, {budget:,} are available;"
            " ask for a smaller context or for fewer sequences"
        )
    chosen = pools(tokens)
    return KVPlan(
        groups=tuple(BlockGroup(window, blocks) for window, blocks in zip(windows, chosen, strict=True)),
        layer_group=layer_group,
        layer_bytes=tuple(block_bytes * blocks for blocks in chosen),
        max_context=max_context,
        nbytes=nbytes(tokens),
    )


def minimal_kv_bytes(model: ModelConfig, options: EngineConfig) -> int:
    """Return the size of the smallest cache that one request could run in, in bytes."""
    element = 2 if options.kv_dtype is KVDType.F16 else 4
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * element * options.block_size


def _num_blocks(window: int, tokens: int, options: EngineConfig) -> int:
    blocks = -(-tokens // options.block_size)
    if window == 0:
        return blocks
    kept = num_blocks_spanned(window, options.block_size)  # of every sequence, between steps
    in_steps = num_blocks_spanned(options.num_frames * options.max_num_batched_tokens, options.block_size)
    return min(blocks, options.max_num_seqs * kept + in_steps)


def _largest(low: int, high: int, step: int, nbytes: Callable[[int], int], budget: int) -> int:
    """Return the largest multiple of `step` in [low, high] that fits, or 0."""
    low, high = low // step, -(-high // step)
    if nbytes(low * step) > budget:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if nbytes(middle * step) <= budget else (low, middle - 1)
    return low * step
