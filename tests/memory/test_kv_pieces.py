"""How a cache is cut, and how blocks are numbered, without a device."""

from __future__ import annotations

import pytest

from unicorn_async.memory.kv_pieces import (
    FIRST_TOKENS,
    MOST_PIECES,
    NUM_SLOTS,
    PIECE_BYTES,
    Numbering,
    Pieces,
    cut,
    growth_order,
    num_first,
)

BLOCK = 1 << 16  # bytes of a layer's keys


def test_a_cache_smaller_than_a_piece_is_one_with_nothing_to_spare() -> None:
    (pieces,) = cut([Pieces(1, 13, 3, 4096)], block_size=16)
    assert (pieces.count, pieces.num_blocks, pieces.nbytes) == (1, 13, 13 * 3 * 2 * 4096)


@pytest.mark.parametrize("blocks", [1000, 1001, 5000, 200_000])
def test_pieces_are_of_one_size_and_few_enough_and_hold_what_was_asked_for(blocks: int) -> None:
    sizes = [(blocks, 10, 4 * BLOCK), (blocks // 3, 52, BLOCK)]
    found = cut([Pieces(1, *size) for size in sizes], block_size=16)
    assert sum(pieces.count for pieces in found) <= MOST_PIECES + len(sizes)
    for (wanted, layers, nbytes), pieces in zip(sizes, found, strict=True):
        assert (pieces.num_layers, pieces.block_nbytes) == (layers, nbytes)
        assert wanted <= pieces.total_blocks < wanted + pieces.count
    total = sum(2 * nbytes * blocks * layers for blocks, layers, nbytes in sizes)
    assert max(pieces.nbytes for pieces in found) < max(PIECE_BYTES, total // MOST_PIECES) + 200 * BLOCK


def test_a_cache_whose_slots_reach_no_further_than_a_drivers_addresses_lie_apart_is_not_cut() -> None:
    for slot_nbytes, is_cut in ((256, True), (255, False)):
        (pieces,) = cut([Pieces(1, 10_000, 24, 16 * slot_nbytes)], block_size=16)
        assert (pieces.count > 1) == is_cut


@pytest.mark.parametrize("first", [0, 256, 106_758_144, 0xDEF5_FE00_00, 0x7F85_0FFF_F000])
@pytest.mark.parametrize("block_nbytes", [4096, BLOCK, 1088 * 16])
def test_a_block_of_any_piece_is_where_its_number_says(first: int, block_nbytes: int) -> None:
    numbering = Numbering.around(first, block_nbytes, 16)
    assert numbering.start(first) == first
    assert numbering.origin >= 0
    for address in (first, first + (1 << 30), first + 12_288, max(first - (1 << 33), 0)):
        start = numbering.start(address)
        assert address <= start < address + block_nbytes
        blocks = numbering.blocks(start, 5)
        assert blocks is not None and len(blocks) == 5
        assert numbering.origin + blocks[0] * block_nbytes == start
        assert blocks[0] >= 0 and blocks[-1] * 16 + 15 < NUM_SLOTS


def test_all_addresses_below_what_slots_reach_can_be_named_from_a_low_one() -> None:
    """A driver has put the first allocations at 106 MB, and later ones below 892 GiB."""
    numbering = Numbering.around(0x65D_0000, 16 * 256, 16)
    blocks = numbering.blocks(numbering.start(0xDE_F5FE_0000), 100)
    assert blocks is not None and numbering.origin < 4096


def test_what_lies_too_far_has_no_number() -> None:
    numbering = Numbering.around(1 << 46, 4096, 16)
    reach = 4096 * NUM_SLOTS // 16
    assert numbering.blocks(numbering.start((1 << 46) - reach), 1) is None
    assert numbering.blocks(numbering.start((1 << 46) + reach), 1) is None
    last = numbering.start((1 << 46) + reach // 2 - (4 << 20))
    assert numbering.blocks(last, 1) is not None
    assert numbering.blocks(last, 10_000) is None


def test_layers_lie_one_after_the_other_in_a_piece() -> None:
    pieces = Pieces(3, 5, 2, 100)
    assert [pieces.keys_offset(0), pieces.values_offset(0), pieces.keys_offset(1), pieces.values_offset(1)] == [
        0,
        500,
        1000,
        1500,
    ]
    assert pieces.nbytes == 2304  # 2,000 bytes, a block to begin anywhere, at a multiple of 256


def test_latents_are_keys_alone() -> None:
    pieces = Pieces(3, 5, 2, 100, num_parts=1)
    assert [pieces.keys_offset(1), pieces.values_offset(1), pieces.whole_nbytes] == [500, 500, 1000]
    assert cut([Pieces(1, 13, 3, 4096, num_parts=1)], block_size=16) == (Pieces(1, 13, 3, 4096, num_parts=1),)


def test_groups_grow_as_tokens_need_them() -> None:
    full, window = Pieces(4, 100, 1, 1), Pieces(2, 150, 5, 1)
    assert growth_order([full, window]) == (0, 1, 0, 1, 0, 0)
    assert num_first([full, window], 16) == 2 + 1
    assert min(2 * 100 * 16, 150 * 16) >= FIRST_TOKENS
