"""Attention as a device's job: what goes in, and the one method that a device implements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.gpu.recorder import Recorder
    from unicorn_async.ops.kv_cache import KVCache
    from unicorn_async.ops.rotary import HeadRotation
    from unicorn_async.ops.rows import RowForm, Rows
    from unicorn_async.tensor import Tensor


@dataclass(frozen=True, slots=True)
class DecodeScratch:
    """What the splits of decode items leave for each other, by address: all layers may share it, one after the other.

    `partials` has AttentionPlan.partials_nbytes. `split_counters` has AttentionPlan.split_counters_nbytes, which are
    zeros at first, and zeros again after each layer.
    """

    partials: int
    split_counters: int


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Where a step's attention of one kind of layer finds its work; all but the flags is read when the step runs.

    Addresses are device addresses, borrowed. Query i of a sequence stands at row query_start + i of q and has the
    position context_len - query_len + i; the sequence's keys up to there are in the cache. A decode item is a sequence
    with one query. Where the step `has_proposals`, a sequence has several rows with a query each, the later of which
    see keys of the earlier. A prefill tile is the sequence's row and its first query: multiples of the device's queries
    per tile. The flags say what is recorded: a part that is left out must have no work in any step that is replayed.
    """

    query_start: int  # (sequences) u32
    query_len: int  # (sequences) u32
    context_len: int  # (sequences) u32
    block_table: int  # (sequences, max_blocks) u32; entries whose keys no query sees are not read
    max_blocks: int
    decode_items: int  # (items, 2) u32: the sequence's row, its query's row
    prefill_tiles: int  # (tiles, 2) u32: the sequence's row, the first query
    scratch: DecodeScratch
    grids: Buffer  # indirect dispatch sizes, three u32 each, at these offsets
    decode_grid_offset: int
    prefill_grid_offset: int
    has_decode: bool = True
    has_prefill: bool = True
    has_proposals: bool = False


class AttentionOp(Protocol):
    """A device that computes softmax(q · K^T) · V over the paged cache."""

    def writes(self, form: RowForm) -> bool:
        """Whether `record` can leave its result in this form."""

    def record(
        self,
        recorder: Recorder,
        *,
        q: Tensor,
        cache: KVCache,
        window: int,
        batch: AttentionBatch,
        out: Rows,
        rotation: HeadRotation | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        """Record one layer's attention of a batch.

        `q` is (tokens, num_heads * head_dim) f32, rotated and scaled; `out` is (tokens, num_heads * value_dim),
        elsewhere, and has a form that the device `writes`. A query sees the keys up to its own position, and with a
        window (0 = none) only the last `window` of them. Rows of `out` without a query stay as they are. Barriers
        before and after are the caller's.

        With a `rotation` the batch has decode items alone, and `q` is (tokens, (num_heads + 2 * num_kv_heads) *
        head_dim): q, k and v as their product leaves them, without v where it is made of k. What `rope_cache` does to
        them is done here then.

        `sinks` are (num_heads) f32: logits beside those of a head's keys, which take their part of the softmax and
        leave nothing.
        """
