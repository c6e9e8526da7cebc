"""How large a KV cache is planned, held against all sizes that it could have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from unicorn_async.config import AttentionTarget, EngineConfig
from unicorn_async.errors import OutOfMemoryError
from unicorn_async.memory import kv_pieces
from unicorn_async.memory.kv_plan import _Sizes, plan_kv_cache
from unicorn_async.models.blocks.declarations import Paged

if TYPE_CHECKING:
    from unicorn_async.models.spec import ModelSpec

BLOCK = 16


def spec(windows: list[int], max_position: int, head_dim: int = 128, global_dim: int | None = None) -> ModelSpec:
    """What a plan asks of a model with a layer for each window, 0 = none; those without may have other heads."""
    states = [Paged(window, 1, head_dim if window else global_dim or head_dim) for window in windows]
    layers = [SimpleNamespace(paged=state) for state in states]
    paged = tuple(sorted(set(states), key=lambda state: state.window))
    return cast(
        "ModelSpec",
        SimpleNamespace(layers=layers, paged_states=paged, max_position=max_position, predicts=False),
    )


@settings(max_examples=200, deadline=None)
@given(
    windows=st.lists(st.sampled_from([0, 0, 40, 100]), min_size=1, max_size=7),
    max_position=st.integers(200, 2500),
    piece_bytes=st.sampled_from([1 << 15, 1 << 16, 1 << 17]),
    most_pieces=st.sampled_from([9, 40]),
    max_num_seqs=st.sampled_from([1, 2, 5]),
    share=st.floats(0.0, 1.0),
    spare=st.sampled_from([0, 0, 1]),
    largest_share=st.sampled_from([2.0, 0.3, 0.02]),
    head_dim=st.sampled_from([128, 64]),
    global_dim=st.sampled_from([None, 64, 256]),
    attention=st.sampled_from(["gpu", "vulkan:0"]),
)
@example(  # a search by halves ends 58 blocks short of it
    windows=[40, 100, 40, 100, 100, 40, 0],
    max_position=1081,
    piece_bytes=1 << 15,
    most_pieces=40,
    max_num_seqs=5,
    share=0.28125,
    spare=0,
    largest_share=2.0,
    head_dim=128,
    global_dim=None,
    attention="gpu",
)
def test_no_larger_cache_would_fit(
    windows: list[int],
    max_position: int,
    piece_bytes: int,
    most_pieces: int,
    max_num_seqs: int,
    share: float,
    spare: int,
    largest_share: float,
    head_dim: int,
    global_dim: int | None,
    attention: str,
) -> None:
    """Heads of 64 are too small for a group to be cut."""
    model = spec(windows, max_position, head_dim, global_dim)
    options = EngineConfig(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=32, attention=AttentionTarget.parse(attention)
    )
    most = max_num_seqs * -(-max_position // BLOCK)
    with mock.patch.multiple(kv_pieces, PIECE_BYTES=piece_bytes, MOST_PIECES=most_pieces):
        sizes = _Sizes.of(model, options)
        whole = sizes.nbytes(most * BLOCK)
        budget = sizes.nbytes(int(1 + share * (most - 1)) * BLOCK) - spare
        max_allocation = int(largest_share * whole)
        fitting = (
            tokens
            for tokens in range(most * BLOCK, 0, -BLOCK)
            if sizes.nbytes(tokens) <= budget and sizes.allocation(tokens) <= max_allocation
        )
        largest = next(fitting, 0)
        if largest == 0:
            with pytest.raises(OutOfMemoryError):
                plan_kv_cache(model, options, budget, max_allocation=max_allocation)
            return
        plan = plan_kv_cache(model, options, budget, max_allocation=max_allocation)
        assert (plan.max_context, plan.nbytes) == (min(max_position, largest), sizes.nbytes(largest))


def test_an_allocation_that_is_too_large_for_the_device_is_why_a_context_is_refused() -> None:
    model = spec([0, 0], 1 << 20, head_dim=64)
    options = EngineConfig(max_num_seqs=1, max_context=1 << 20)
    needed = 2 * 2 * 64 * 2 << 20  # keys and values of two layers, f16
    with pytest.raises(OutOfMemoryError, match=rf"{needed:,} bytes in one allocation, .* {needed - 1:,} at once"):
        plan_kv_cache(model, options, 1 << 40, max_allocation=needed - 1)
    assert plan_kv_cache(model, options, 1 << 40, max_allocation=needed).nbytes == needed
    with pytest.raises(OutOfMemoryError, match=rf"needs {needed:,} bytes, {needed - 1:,} are available"):
        plan_kv_cache(model, options, needed - 1, max_allocation=1 << 20)


def test_layers_with_other_heads_have_a_group_of_their_own() -> None:
    options = EngineConfig(max_num_seqs=1, max_num_batched_tokens=32)
    plan = plan_kv_cache(spec([40, 40, 0, 40, 0], 800, 128, 512), options, 1 << 30)
    assert plan.layer_group == (1, 1, 0, 1, 0)
    full, window = plan.pieces
    assert (full.num_layers, full.block_nbytes) == (2, 512 * 2 * options.block_size)
    assert (window.num_layers, window.block_nbytes) == (3, 128 * 2 * options.block_size)
    assert plan.nbytes == sum(pieces.count * pieces.nbytes for pieces in plan.pieces)
