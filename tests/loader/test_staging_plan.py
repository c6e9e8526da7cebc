"""What a load's staging memory takes: known before the load."""

from __future__ import annotations

import pytest

from unicorn_async.loader.open_file import PAGE_BYTES
from unicorn_async.loader.staging_plan import RingSize, StagingNeed
from unicorn_async.tensor import DType, QuantFormat
from unicorn_async.weights.chunk import Chunk, Transform
from unicorn_async.weights.plan import CHUNK_BYTES, DestTensor, LoadPlan

MIB = 1 << 20


def plan(layers: int, elements: int) -> LoadPlan:
    """Layers of one matrix each, which is quantised."""
    chunks, destinations = [], []
    for layer in range(layers):
        name, nbytes = f"layers.{layer}.qkv", 2 * elements
        destinations.append(DestTensor(name, (elements // 64, 64), QuantFormat.INT8, layer, name))
        for start in range(0, nbytes, CHUNK_BYTES):
            size = min(CHUNK_BYTES, nbytes - start)
            chunks.append(Chunk(0, start, size, name, 0, Transform.QUANTIZE, DType.BF16, QuantFormat.INT8, layer))
    return LoadPlan(tuple(destinations), tuple(chunks), tuple(range(layers)), ())


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([100, 50], 1000, (2, 100)),
        ([100] * 40, 10_000, (16, 100)),
        ([100] * 40, 350, (3, 100)),
        ([1000], 10, (1, 1000)),
        ([100, *[10] * 15], 10_000, (3, 100)),
    ],
)
def test_a_ring_has_no_more_buffers_than_transfers_or_their_bytes_or_than_fit(
    sizes: list[int], limit: int, expected: tuple[int, int]
) -> None:
    size = RingSize.of(sizes, limit, reads_pages=False)
    assert ((size.num_buffers, size.buffer_bytes), size.nbytes) == (expected, expected[0] * expected[1])


def test_whole_pages_have_room_at_both_ends() -> None:
    assert RingSize.of([PAGE_BYTES + 1], 1 << 20, reads_pages=True).buffer_bytes == 3 * PAGE_BYTES


def test_a_large_model_stages_what_it_may_and_a_small_one_what_it_has() -> None:
    large, small = StagingNeed.of([plan(40, 16 * MIB)]), StagingNeed.of([plan(2, MIB)])
    assert 0.9 * 256 * MIB < large.nbytes(256 * MIB) <= 256 * MIB
    assert large.nbytes(64 * MIB) <= 64 * MIB
    assert 4 * MIB <= small.nbytes(256 * MIB) <= 4 * MIB + 4 * PAGE_BYTES
    assert StagingNeed.of([LoadPlan((), (), (), ())]).nbytes(256 * MIB) == 0


@pytest.mark.parametrize("plans", [[plan(40, 16 * MIB)], [plan(40, 16 * MIB), plan(20, MIB)]])
def test_the_limit_is_the_highest_under_which_all_rings_fit_or_two_buffers(plans: list[LoadPlan]) -> None:
    need, buffer_bytes = StagingNeed.of(plans), CHUNK_BYTES + 2 * PAGE_BYTES
    assert need.limit(256 * MIB, need.nbytes(256 * MIB)) == 256 * MIB
    for available in (need.nbytes(256 * MIB) - 1, 160 * MIB, 5 * buffer_bytes):
        limit = need.limit(256 * MIB, available)
        assert need.nbytes(limit) <= available < need.nbytes(limit + buffer_bytes)
    for available in (-1, 0, buffer_bytes):
        assert need.limit(256 * MIB, available) == 2 * buffer_bytes
    assert need.limit(20 * MIB, 0) == 20 * MIB
