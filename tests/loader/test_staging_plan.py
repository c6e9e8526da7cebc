"""What a load's staging memory takes: known before the load."""

from __future__ import annotations

import pytest

from unicorn_async.loader.chunk import Chunk, Transform
from unicorn_async.loader.open_file import PAGE_BYTES
from unicorn_async.loader.plan import CHUNK_BYTES, DestTensor, LoadPlan
from unicorn_async.loader.staging_plan import RingSize, most_staged
from unicorn_async.tensor import DType, QuantFormat

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
    ],
)
def test_a_ring_has_no_more_slots_than_parcels_or_than_fit(
    sizes: list[int], limit: int, expected: tuple[int, int]
) -> None:
    size = RingSize.of(sizes, limit, reads_pages=False)
    assert ((size.num_slots, size.slot_bytes), size.nbytes) == (expected, expected[0] * expected[1])


def test_whole_pages_have_room_at_both_ends() -> None:
    assert RingSize.of([PAGE_BYTES + 1], 1 << 20, reads_pages=True).slot_bytes == 3 * PAGE_BYTES


def test_a_large_model_stages_what_it_may_and_a_small_one_what_it_has() -> None:
    large, small = plan(40, 16 * MIB), plan(2, MIB)
    assert 0.9 * 256 * MIB < most_staged(large, 256 * MIB) <= 256 * MIB
    assert most_staged(large, 64 * MIB) <= 64 * MIB
    assert 4 * MIB <= most_staged(small, 256 * MIB) <= 4 * MIB + 4 * PAGE_BYTES
    assert most_staged(LoadPlan((), (), (), ()), 256 * MIB) == 0
