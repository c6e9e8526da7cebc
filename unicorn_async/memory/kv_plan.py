"""How the memory for keys and values is divided into block groups, and these into pieces.

Layers with the same window share a group. A sliding-window group keeps its window's blocks alone, so its pool is
bounded by sequences, not by context: Gemma 3 27B needs 12 GB instead of 67 at its full context.

The cache of the device that runs the model is allocated piece by piece, the last ones beside serving: some drivers
take 20 milliseconds a gigabyte. A cache elsewhere is there as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError, OutOfMemoryError
from unicorn_async.memory.kv_pieces import Pieces, cut, growth_order, num_first
from unicorn_async.ops.kv_cache import head_nbytes
from unicorn_async.scheduler.block_manager import BlockGroup, num_blocks_spanned

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.budget import MemoryBudget
    from unicorn_async.models.spec import ModelSpec

_UNBOUNDED = 1 << 62
_SHARE = 0.25  # of the memory, where others need it as much


@dataclass(frozen=True, slots=True)
class KVPlan:
    """Pools of blocks, and which layer uses which; None = it has no keys and values.

    `layer_bytes` is the size of one layer's keys (its values take as much), by group; `pieces` is how a group is cut,
    none where another device attends, and `num_first` of these, in the order of growth, are for the first requests.
    """

    groups: tuple[BlockGroup, ...]
    layer_group: tuple[int | None, ...]
    layer_bytes: tuple[int, ...]
    max_context: int
    nbytes: int
    pieces: tuple[Pieces, ...] = ()
    num_first: int = 0

    @property
    def first_bytes(self) -> int:
        """Size of what there is for the first requests; all of it where it does not grow."""
        first = growth_order(self.pieces)[: self.num_first]
        return sum(self.pieces[group].nbytes for group in first) if self.pieces else self.nbytes

    def group_of(self, layer: int) -> int:
        """Return the group of a layer that attends."""
        group = self.layer_group[layer]
        assert group is not None, f"layer {layer} has no keys and values"
        return group


def plan_kv_cache(
    model: ModelSpec, options: EngineConfig, available_bytes: int, *, max_allocation: int = _UNBOUNDED
) -> KVPlan:
    """Choose the pools' sizes for `available_bytes`, at most what all sequences need at full context.

    A piece lies in one allocation; elsewhere a layer's keys do, and its values.

    Raises:
        ConfigError: the asked-for context is longer than the model's.
        OutOfMemoryError: not even one block a group, or the asked-for context, fits.
    """
    windows = tuple(sorted(set(_windows(model))))
    block_bytes = _block_bytes(model, options)
    wanted = wanted_context(model, options)

    def nbytes(tokens: int) -> int:
        pieces = _pieces(model, options, tokens)
        if any(piece.nbytes > max_allocation for piece in pieces):
            return _UNBOUNDED
        largest = block_bytes * max(_num_blocks(window, tokens, options) for window in windows)
        fits = bool(pieces) or largest <= max_allocation
        return kv_cache_bytes(model, options, tokens) if fits else _UNBOUNDED

    budget = min(available_bytes, options.kv_cache_bytes or available_bytes)
    asked = -(-wanted // options.block_size) * options.block_size
    low = asked if nbytes(asked) <= budget else options.block_size
    tokens = _largest(low, options.max_num_seqs * asked, options.block_size, nbytes, budget)
    max_context = min(wanted, tokens)
    if tokens == 0 or (options.max_context and max_context < wanted):
        needed = kv_cache_bytes(model, options, wanted if options.max_context else options.block_size)
        raise OutOfMemoryError(
            f"KV cache: a context of {wanted} tokens needs {needed:,} bytes, {budget:,} are available;"
            " ask for a smaller context or for fewer sequences"
        )
    pieces = _pieces(model, options, tokens)
    chosen = tuple(piece.total_blocks for piece in pieces) or tuple(
        _num_blocks(window, tokens, options) for window in windows
    )
    return KVPlan(
        groups=tuple(BlockGroup(window, blocks) for window, blocks in zip(windows, chosen, strict=True)),
        layer_group=tuple(None if window is None else windows.index(window) for window in model.layer_windows),
        layer_bytes=tuple(block_bytes * blocks for blocks in chosen),
        max_context=max_context,
        nbytes=nbytes(tokens),
        pieces=pieces,
        num_first=num_first(pieces, options.block_size),
    )


def wanted_context(model: ModelSpec, options: EngineConfig) -> int:
    """Return how many tokens a sequence should have room for.

    Raises:
        ConfigError: the asked-for context is longer than the model's.
    """
    wanted = options.max_context or model.max_position
    if wanted > model.max_position:
        raise ConfigError(f"max_context: the model has {model.max_position} positions, {wanted} are asked for")
    return wanted


def kv_cache_bytes(model: ModelSpec, options: EngineConfig, tokens: int) -> int:
    """Return the size of a cache for so many tokens, of one sequence or of several, in bytes."""
    pieces = _pieces(model, options, tokens)
    if pieces:
        return sum(piece.count * piece.nbytes for piece in pieces)
    blocks = sum(_num_blocks(window, tokens, options) for window in _windows(model))
    return 2 * blocks * _block_bytes(model, options)


def kv_budget(
    room: MemoryBudget, model: ModelSpec, options: EngineConfig, *, weights: int, fast_weights: int, others: int
) -> int:
    """Return what the cache may take of the room that is left beside weights and `others`, in bytes.

    `fast_weights` are those that should not lie in GTT. Where programs of the host use the same memory, or weights
    would be pushed behind a bus, the cache takes a quarter at most, or what was asked for.
    """
    left = room.total - weights - others
    if options.kv_cache_bytes is not None:
        return left
    least = kv_cache_bytes(model, options, options.max_context or options.block_size)
    if room.is_shared:
        return min(left, max(least, int(room.total * _SHARE)))
    if room.slow_gtt:
        return min(left, max(least, room.vram - fast_weights - others, int(room.vram * _SHARE)))
    return left


def _pieces(model: ModelSpec, options: EngineConfig, tokens: int) -> tuple[Pieces, ...]:
    """Return how the groups, by their windows, are cut for so many tokens; none where another device attends."""
    if options.attends_elsewhere:
        return ()
    windows, block_bytes = _windows(model), _block_bytes(model, options)
    blocks = {window: _num_blocks(window, tokens, options) for window in sorted(set(windows))}
    sizes = [(number, windows.count(window)) for window, number in blocks.items()]
    return cut(sizes, block_nbytes=block_bytes, slot_nbytes=block_bytes // options.block_size)


def _windows(model: ModelSpec) -> list[int]:
    """Of the layers that have keys and values."""
    return [window for window in model.layer_windows if window is not None]


def _block_bytes(model: ModelSpec, options: EngineConfig) -> int:
    """Size of one layer's keys in one block, the same for all layers that have them."""
    state = next(layer.paged for layer in model.layers if layer.paged is not None)
    return state.num_kv_heads * options.block_size * head_nbytes(state.head_dim, options.kv_dtype)


def _num_blocks(window: int, tokens: int, options: EngineConfig) -> int:
    """Blocks of a layer for so many tokens: with a window, as many as the steps in flight can touch at once.

    While the model loads there may be more steps, but those of a prompt go on through the blocks of the ones before.
    """
    blocks = -(-tokens // options.block_size)
    if window == 0:
        return blocks
    kept = num_blocks_spanned(window, options.block_size)  # of every sequence, between steps
    in_steps = num_blocks_spanned(options.num_frames * options.max_num_batched_tokens, options.block_size)
    return min(blocks, options.max_num_seqs * kept + in_steps)


def _largest(low: int, high: int, step: int, nbytes: Callable[[int], int], budget: int) -> int:
    """Return a multiple of `step` in [low, high] that fits, or 0 if `low` does not; about the largest.

    Sizes mostly grow with tokens: how a cache is cut may make one smaller than those of some tokens fewer.
    """
    low, high = low // step, high // step
    if nbytes(low * step) > budget:
        return 0
    if nbytes(high * step) <= budget:
        return high * step
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if nbytes(middle * step) <= budget else (low, middle - 1)
    return low * step
