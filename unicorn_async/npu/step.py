"""A step's attention, prepared: what layers of one window share, so that a layer copies queries and results alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.errors import ConfigError
from unicorn_async.npu.dialect_check import max_overhead_bytes
from unicorn_async.npu.geometry import CORE_BUFFER_BYTES, CORES_PER_TEAM
from unicorn_async.npu.pace import RunLoad, num_tasks
from unicorn_async.npu.packets import parameters
from unicorn_async.npu.part import PreparedPart
from unicorn_async.npu.schedule import ScheduledItem, instructions, stream_bytes
from unicorn_async.npu.work import plan_items, spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from unicorn_async.npu.manifest import Build
    from unicorn_async.npu.work import AttentionHeads, Item, SequenceWork


@dataclass(frozen=True, slots=True, eq=False)
class PreparedStep:
    """A step's sequences, cut into parts that fit into a run, for caches of `num_blocks` blocks.

    `is_shared` says that the parts have places of their own in one `SharedPackets`.
    """

    heads: AttentionHeads
    num_tokens: int
    num_blocks: int
    parts: tuple[PreparedPart, ...]
    is_shared: bool = False

    @property
    def num_items(self) -> int:
        """Items of all parts."""
        return sum(len(part.items) for part in self.parts)


def instruction_bytes(heads: AttentionHeads, max_context: int) -> int:
    """Return what suffices for the instructions of any item of a context so long, wherever its blocks are."""
    scattered = ((0, CORE_BUFFER_BYTES),) * -(-max_context // heads.layout.chunk_keys)
    return max_overhead_bytes(heads.layout.chip) + stream_bytes([ScheduledItem(0, scattered, 0, 0)])


def prepare_step(
    build: Build,
    heads: AttentionHeads,
    sequences: Sequence[SequenceWork],
    *,
    num_tokens: int,
    num_blocks: int,
    window: int,
    soft_cap: float,
    items_per_run: int,
    instruction_bytes: int,
    tasks_per_run: int,
    run_s: float,
    is_shared: bool = False,
) -> PreparedStep:
    """Prepare a step of `num_tokens` rows of q for the layers with this window (in tokens, 0 = none).

    A part takes `run_s` at most, as `pace` guesses, and so many tasks, or has a single item.

    Raises:
        ConfigError: rows, lengths or blocks that don't fit, or an item whose instructions don't.
    """
    if window < 0:
        raise ConfigError(f"NPU attention: window: expected 0 or more, got {window}")
    for row, sequence in enumerate(sequences):
        _check(row, sequence, heads, num_tokens, num_blocks, window)
    limits = _RunLimits(items_per_run, instruction_bytes - build.dialect.nbytes, tasks_per_run, run_s)
    planned = list(_split(heads, plan_items(heads, sequences, window=window, num_blocks=num_blocks), limits))
    num_strips = [[_num_strips(heads, item) for item in items] for items in planned]
    widest = _joined(max(map(max, num_strips), default=0))  # other devices know of one size of results
    parts: list[PreparedPart] = []
    first = 0
    for items, item_strips in zip(planned, num_strips, strict=True):
        strips = widest if is_shared else _joined(max(item_strips))
        parts.append(_part(build, heads, items, item_strips, strips, first, window, soft_cap))
        first += len(items) if is_shared else 0
    return PreparedStep(heads, num_tokens, num_blocks, tuple(parts), is_shared)


def _num_strips(heads: AttentionHeads, item: Item) -> int:
    return -(-item.num_queries * heads.group // heads.layout.chip.tile_n)


def _joined(strips: int) -> int:
    """Return how many strips of results come of so many: the cores of a team send as many each."""
    return -(-strips // CORES_PER_TEAM) * CORES_PER_TEAM


def _check(
    row: int, sequence: SequenceWork, heads: AttentionHeads, num_tokens: int, num_blocks: int, window: int
) -> None:
    start, count, context = sequence.query_start, sequence.query_len, sequence.context_len
    if start < 0 or count < 1 or start + count > num_tokens or context < count:
        raise ConfigError(
            f"NPU attention: sequence {row}: queries {start} to {start + count - 1} of {num_tokens} rows, the last of"
            f" {context} tokens"
        )
    first = max(0, context - count + 1 - window) if window else 0
    blocks = sequence.blocks[first // heads.block_size : (context - 1) // heads.block_size + 1]
    if len(sequence.blocks) * heads.block_size < context or not all(0 <= block < num_blocks for block in blocks):
        raise ConfigError(
            f"NPU attention: sequence {row}: {context} tokens in blocks {list(sequence.blocks)}; expected blocks of"
            f" {heads.block_size} tokens, 0 to {num_blocks - 1}"
        )


def halves(build: Build, heads: AttentionHeads, part: PreparedPart, *, is_shared: bool) -> tuple[PreparedPart, ...]:
    """Cut a part of two items or more in two; where it `is_shared`, packets and results stay where they are."""
    middle = len(part.items) // 2
    return tuple(
        _piece(build, heads, part, items, part.first + items.start if is_shared else 0)
        for items in (range(middle), range(middle, len(part.items)))
    )


def _piece(build: Build, heads: AttentionHeads, part: PreparedPart, numbers: range, first: int) -> PreparedPart:
    rows = slice(numbers.start, numbers.stop)
    items = part.items[rows]
    strips = [_num_strips(heads, item) for item in items]
    return replace(
        part,
        items=items,
        parameters=part.parameters[rows],
        tokens=part.tokens[rows],
        heads=part.heads[rows],
        used=part.used[rows],
        stream=_stream(build, heads, items, strips, part.result_bytes, first),
        first=first,
        guess_s=RunLoad.of(heads, items).seconds,
        cuts=part.cuts + 1,
    )


@dataclass(frozen=True, slots=True)
class _RunLimits:
    """How many items a run takes, how many bytes of instructions and tasks, and how long it may take."""

    num_items: int
    instruction_bytes: int
    num_tasks: int
    seconds: float


def _split(heads: AttentionHeads, items: Iterator[Item], limits: _RunLimits) -> Iterator[tuple[Item, ...]]:
    part: list[Item] = []
    nbytes, tasks, load = 0, 0, RunLoad(heads.layout.chip.num_teams)
    for item in items:
        needed = stream_bytes([ScheduledItem(0, item.runs, 0, 0)])
        if needed > limits.instruction_bytes:
            raise ConfigError(
                f"NPU attention: an item needs {needed} bytes of instructions, {limits.instruction_bytes} are there"
            )
        longer = load.with_item(heads, item)
        is_full = len(part) == limits.num_items or nbytes + needed > limits.instruction_bytes
        is_long = longer.seconds > limits.seconds or tasks + num_tasks(item) > limits.num_tasks
        if part and (is_full or is_long):
            yield tuple(part)
            part, nbytes, tasks, longer = [], 0, 0, RunLoad.of(heads, [item])
        part.append(item)
        nbytes, tasks, load = nbytes + needed, tasks + num_tasks(item), longer
    if part:
        yield tuple(part)


def _part(
    build: Build,
    heads: AttentionHeads,
    items: tuple[Item, ...],
    item_strips: list[int],
    strips: int,
    first: int,
    window: int,
    soft_cap: float,
) -> PreparedPart:
    layout = heads.layout
    num_rows = np.array([item.num_queries * heads.group for item in items])
    rows = np.arange(strips * layout.chip.tile_n)
    used = rows < num_rows[:, None]
    query = np.where(used, rows // heads.group, 0)  # rows that are not used repeat the first
    first_query = np.array([item.first_query for item in items])[:, None]
    first_head = np.array([item.kv_head * heads.group for item in items])[:, None]
    result_bytes = strips * layout.strip_bytes
    return PreparedPart(
        items=items,
        strips=strips,
        result_bytes=result_bytes,
        parameters=parameters(heads, items, strips=item_strips, window=window, soft_cap=soft_cap),
        tokens=first_query + query,
        heads=first_head + rows % heads.group,
        used=used,
        stream=_stream(build, heads, items, item_strips, result_bytes, first),
        first=first,
        guess_s=RunLoad.of(heads, items).seconds,
    )


def _stream(
    build: Build, heads: AttentionHeads, items: tuple[Item, ...], item_strips: list[int], result_bytes: int, first: int
) -> NDArray[np.uint32]:
    scheduled = [
        ScheduledItem(number, item.runs, number * result_bytes, _joined(count) * heads.layout.strip_bytes)
        for number, (item, count) in enumerate(zip(items, item_strips, strict=True), first)
    ]
    teams = zip(build.teams, spread(items, len(build.teams)), strict=True)
    return instructions(build.dialect, [(team, [scheduled[n] for n in numbers]) for team, numbers in teams]).words()
