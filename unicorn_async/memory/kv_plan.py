"""How the memory for keys and values is divided into block groups, and these into pieces.

Layers with the same window and heads of the same size share a group; of latents there are keys alone. A sliding-window
group keeps its window's blocks alone, so its pool is bounded by sequences, not by context: Gemma 3 27B needs 12 GB
instead of 67 at its full context.

The cache of the device that runs the model is allocated piece by piece, the last ones beside serving: some drivers
take 20 milliseconds a gigabyte. A cache elsewhere is there as a whole.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.config import KVDType
from unicorn_async.errors import ConfigError, OutOfMemoryError
from unicorn_async.memory.kv_pieces import Pieces, can_be_cut, cut, growth_order, num_first
from unicorn_async.ops.kv_cache import head_nbytes
from unicorn_async.scheduler.block_manager import BlockGroup, num_blocks_spanned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.budget import MemoryBudget
    from unicorn_async.models.blocks.declarations import Paged
    from unicorn_async.models.spec import ModelSpec

PASSING_BYTES = 64 << 20  # of the host's memory, through which blocks go to a disk and come from it
PASSING_STATES = 2  # of fixed size that there is room for beside these: one is saved while another is written
_UNBOUNDED = 1 << 62
_SHARE = 0.25  # of the memory, where others need it as much
_NO_DRAFT = ", or leave out the layer that predicts a token more with --draft none"


@dataclass(frozen=True, slots=True)
class KVPlan:
    """Pools of blocks, and which layer uses which; None = it has no keys and values.

    `layer_bytes` is the size of one layer's keys (its values take as much), by group; `pieces` is how a group is cut,
    none where another device attends, or nothing does, and `num_first` of these, in the order of growth, are for the
    first requests.
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
    sizes = _Sizes.of(model, options)
    wanted = wanted_context(model, options)
    if not model.paged_states:
        return _without_memory(model, options, wanted)
    budget = min(available_bytes, options.kv_cache_bytes or available_bytes)
    asked = -(-wanted // options.block_size) * options.block_size
    tokens = _largest(sizes, options.max_seqs * asked, budget, max_allocation)
    max_context = min(wanted, tokens)
    if tokens == 0 or (options.max_context and max_context < wanted):
        needed = wanted if options.max_context else options.block_size
        raise OutOfMemoryError(
            f"KV cache: a context of {wanted} tokens needs {_shortage_text(sizes, needed, budget, max_allocation)};"
            f" ask for a smaller context or for fewer sequences{_NO_DRAFT if model.predicts else ''}"
        )
    pieces = sizes.pieces(tokens)
    groups = pieces or sizes.whole(tokens)
    states = model.paged_states
    return KVPlan(
        groups=tuple(BlockGroup(state.window, of.total_blocks) for state, of in zip(states, groups, strict=True)),
        layer_group=tuple(None if layer.paged is None else states.index(layer.paged) for layer in model.layers),
        layer_bytes=tuple(group.block_nbytes * group.total_blocks for group in groups),
        max_context=max_context,
        nbytes=sizes.nbytes(tokens),
        pieces=pieces,
        num_first=num_first(pieces, options.block_size),
    )


def _without_memory(model: ModelSpec, options: EngineConfig, max_context: int) -> KVPlan:
    """Plan for a model without keys and values: blocks that count tokens, enough for all sequences, of no size.

    By them it is known which sequences begin alike, whose states may be copied then.
    """
    if options.kv_cache_bytes is not None or options.kv_dtype is not KVDType.F16:
        size = "" if options.kv_cache_bytes is None else f" of {options.kv_cache_bytes:,} bytes"
        raise ConfigError(f"KV cache{size} in {options.kv_dtype.value}: {model.architecture} has no keys and values")
    blocks = options.max_seqs * -(-max_context // options.block_size)
    return KVPlan((BlockGroup(0, blocks),), (None,) * model.num_layers, (0,), max_context, 0)


def passing_bytes(model: ModelSpec) -> int:
    """Return how much of the host's memory blocks and states of a model need on their way to a disk, at most."""
    states = sum(layer.fixed.nbytes for layer in model.layers if layer.fixed is not None)
    return PASSING_BYTES + PASSING_STATES * states


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
    return _Sizes.of(model, options).nbytes(tokens)


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


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What a model's cache takes for so many tokens; `layers` is how many there are of each group, in order.

    `block_bytes` is the size of one layer's keys in one block, by group.
    """

    options: EngineConfig
    layers: Mapping[Paged, int]
    block_bytes: tuple[int, ...]

    @classmethod
    def of(cls, model: ModelSpec, options: EngineConfig) -> _Sizes:
        """Look at a model's layers once, for the sizes of many caches."""
        counts = Counter(layer.paged for layer in model.layers)
        layers = {state: counts[state] for state in model.paged_states}
        block_bytes = tuple(
            state.num_kv_heads * options.block_size * head_nbytes(state.head_dim, options.kv_dtype) for state in layers
        )
        return cls(options, layers, block_bytes)

    def pieces(self, tokens: int) -> tuple[Pieces, ...]:
        """Return how the groups are cut; none where another device attends."""
        if self.options.attends_elsewhere:
            return ()
        return cut(self.whole(tokens), block_size=self.options.block_size)

    def whole(self, tokens: int) -> tuple[Pieces, ...]:
        """Return the groups, each as one piece."""
        return tuple(
            Pieces(1, _num_blocks(state.window, tokens, self.options), layers, block_bytes, state.num_parts)
            for (state, layers), block_bytes in zip(self.layers.items(), self.block_bytes, strict=True)
        )

    def nbytes(self, tokens: int) -> int:
        """Return the size, with what rounding to pieces adds."""
        return sum(piece.count * piece.nbytes for piece in self.pieces(tokens)) or self.least_nbytes(tokens)

    def least_nbytes(self, tokens: int) -> int:
        """Return the size without rounding, which grows with the tokens."""
        return sum(group.nbytes for group in self.whole(tokens))

    def allocation(self, tokens: int) -> int:
        """Return the size of the largest allocation: a piece, elsewhere a layer's keys."""
        pieces = self.pieces(tokens)
        if pieces:
            return max(piece.nbytes for piece in pieces)
        return max(group.block_nbytes * group.num_blocks for group in self.whole(tokens))

    def uncut_allocation(self, tokens: int) -> int:
        """Return the size of the largest allocation of groups that are not cut, which grows with the tokens."""
        groups, here = self.whole(tokens), not self.options.attends_elsewhere
        sizes = [group.nbytes if here else group.block_nbytes * group.num_blocks for group in groups]
        is_cut = [here and can_be_cut(group.block_nbytes // self.options.block_size) for group in groups]
        return max((size for size, cut in zip(sizes, is_cut, strict=True) if not cut), default=0)


def _num_blocks(window: int, tokens: int, options: EngineConfig) -> int:
    """Blocks of a layer for so many tokens: with a window, as many as the steps in flight can touch at once.

    While the model loads there may be more steps, but those of a prompt go on through the blocks of the ones before.
    """
    blocks = -(-tokens // options.block_size)
    if window == 0:
        return blocks
    kept = num_blocks_spanned(window, options.block_size)  # of every sequence, between steps
    in_steps = num_blocks_spanned(options.num_frames * options.max_num_batched_tokens, options.block_size)
    return min(blocks, options.max_seqs * kept + in_steps)


def _largest(sizes: _Sizes, most: int, budget: int, max_allocation: int) -> int:
    """Return the most tokens that fit, whole blocks and at most `most`, or 0 if a single block does not.

    Sizes grow with the tokens but for what rounding to pieces adds: a cache may fit although a smaller one does not.
    So all are tried, from the largest on that would fit without rounding.
    """
    step = sizes.options.block_size

    def fits(blocks: int) -> bool:
        tokens = blocks * step
        return sizes.nbytes(tokens) <= budget and sizes.allocation(tokens) <= max_allocation

    blocks = most // step
    if fits(blocks):
        return blocks * step
    blocks = _last(blocks, lambda number: sizes.least_nbytes(number * step) <= budget)
    blocks = _last(blocks, lambda number: sizes.uncut_allocation(number * step) <= max_allocation)
    if blocks and not fits(blocks):  # nor do others of the same size, where all layers have windows
        nbytes = sizes.least_nbytes(blocks * step)
        blocks = _last(blocks, lambda number: sizes.least_nbytes(number * step) < nbytes)
    while blocks and not fits(blocks):
        blocks -= 1
    return blocks * step


def _last(most: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number up to `most` of which something holds that holds of all below it."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _shortage_text(sizes: _Sizes, tokens: int, budget: int, max_allocation: int) -> str:
    """What lacks for so many tokens: memory, or an allocation of that size."""
    nbytes, allocation = sizes.nbytes(tokens), sizes.allocation(tokens)
    if nbytes <= budget and allocation > max_allocation:
        return f"{allocation:,} bytes in one allocation, the device allocates {max_allocation:,} at once at most"
    return f"{nbytes:,} bytes, {budget:,} are available"
