"""What lies where: priorities, heaps, blocks."""

from __future__ import annotations

import pytest

from unicorn_async.errors import OutOfMemoryError
from unicorn_async.gpu.budget import HeapKind, MemoryBudget
from unicorn_async.weights.placement import Claim, MemoryGroup, Placement, place

VRAM, GTT = HeapKind.VRAM, HeapKind.GTT
KIB = 1 << 10
NUM_LAYERS = 4


def model(*, tied: bool = False, ffn: int = 100 * KIB) -> list[Claim]:
    """A small model's claims in the order of the load, then cache and workspace."""
    claims = [] if tied else [Claim("embed", 64 * KIB, MemoryGroup.EMBEDDINGS, -1, "copy BF16")]
    for layer in range(NUM_LAYERS):
        claims += [
            Claim(f"{layer}.norm", KIB, MemoryGroup.NORMS, layer),
            Claim(f"{layer}.qkv", 20 * KIB, MemoryGroup.ATTENTION, layer),
            Claim(f"{layer}.ffn", ffn, MemoryGroup.FFN, layer, "quantise BF16→int4"),
        ]
    claims.append(Claim("head", 64 * KIB, MemoryGroup.HEAD, NUM_LAYERS))
    claims += [Claim(f"{layer}.keys", 16 * KIB, MemoryGroup.KV_CACHE, layer) for layer in range(NUM_LAYERS)]
    return [*claims, Claim("logits", 8 * KIB, MemoryGroup.WORKSPACE, -1)]


def placed(claims: list[Claim], vram: int, gtt: int, total: int | None = None, **options: int) -> Placement:
    room = MemoryBudget(vram, gtt, vram + gtt if total is None else total)
    return place(claims, room, **({"max_allocation": 1 << 40} | options))


def heaps(placement: Placement) -> dict[str, HeapKind]:
    blocks = (*placement.blocks, *placement.grown)
    return {claim.name: block.heap for block in blocks for claim in block.claims}


def test_one_heap_takes_everything() -> None:
    placement = placed(model(), 1 << 20, 0)
    assert set(heaps(placement).values()) == {VRAM}
    assert placement.nbytes(VRAM) == placement.total_bytes == sum(claim.nbytes for claim in model())
    assert placement.nbytes(GTT) == 0


def test_a_table_of_which_a_token_reads_one_row_goes_to_gtt_first() -> None:
    assert {name for name, heap in heaps(placed(model(), 1 << 20, 1 << 20)).items() if heap is GTT} == {"embed"}


def test_a_table_that_is_the_head_too_stays_in_vram() -> None:
    assert set(heaps(placed(model(tied=True), 1 << 20, 1 << 20)).values()) == {VRAM}


def test_a_table_takes_vram_where_gtt_is_too_small() -> None:
    assert heaps(placed(model(), 1 << 20, 10 * KIB))["embed"] is VRAM


def test_ffn_of_the_last_layers_leaves_vram_first() -> None:
    fixed = (8 + 4 * 16 + 64 + 4 + 4 * 20) * KIB
    for count in range(NUM_LAYERS + 1):
        where = heaps(placed(model(), fixed + count * 100 * KIB, 1 << 20))
        assert [where[f"{layer}.ffn"] for layer in range(NUM_LAYERS)] == [VRAM] * count + [GTT] * (NUM_LAYERS - count)
        assert where["head"] is where["3.qkv"] is where["3.keys"] is where["logits"] is VRAM


@pytest.mark.parametrize(
    ("vram", "in_vram"),
    [
        (8, {"logits"}),
        (8 + 64, {"logits", "keys"}),
        (8 + 64 + 64, {"logits", "keys", "head"}),
        (8 + 64 + 64 + 4, {"logits", "keys", "head", "norm"}),
        (8 + 64 + 64 + 4 + 80, {"logits", "keys", "head", "norm", "qkv"}),
    ],
)
def test_groups_get_vram_in_the_order_of_what_a_token_reads(vram: int, in_vram: set[str]) -> None:
    where = heaps(placed(model(), vram * KIB, 1 << 20))
    assert {name.rpartition(".")[2] for name, heap in where.items() if heap is VRAM} == in_vram


def test_a_group_is_cut_once_unless_gtt_is_full() -> None:
    claims = [Claim(f"{i}.ffn", size * KIB, MemoryGroup.FFN, i) for i, size in enumerate((40, 80, 10, 10))]
    assert [*heaps(placed(claims, 100 * KIB, 200 * KIB)).items()] == [
        ("0.ffn", VRAM),
        ("1.ffn", GTT),
        ("2.ffn", GTT),
        ("3.ffn", GTT),
    ]
    assert heaps(placed(claims, 100 * KIB, 90 * KIB))["3.ffn"] is VRAM


def test_two_heaps_over_one_memory_never_give_more_than_it_has() -> None:
    claims = model(tied=True)
    needed = sum(claim.nbytes for claim in claims)
    half = needed // 2
    assert placed(claims, half + 100 * KIB, half + 100 * KIB, total=needed).total_bytes == needed
    with pytest.raises(OutOfMemoryError, match=r"3\.ffn: 102,400 bytes needed, .* left of VRAM"):
        placed(claims, half + 100 * KIB, half + 100 * KIB, total=needed - 1)


def test_what_fits_nowhere_is_an_error_with_what_is_left() -> None:
    with pytest.raises(OutOfMemoryError, match=r"a: 4,096 bytes needed, 1,024 left of VRAM and 2,048 of GTT"):
        placed([Claim("a", 4 * KIB, MemoryGroup.FFN, 0)], KIB, 2 * KIB)


def test_what_no_single_allocation_holds_is_an_error() -> None:
    with pytest.raises(OutOfMemoryError, match=r"a: 4,096 bytes needed in one piece, the device allocates 1,024"):
        placed([Claim("a", 4 * KIB, MemoryGroup.FFN, 0)], 1 << 20, 0, max_allocation=KIB)


def test_blocks_are_as_large_as_what_lies_in_them() -> None:
    claims = [Claim(str(i), size, MemoryGroup.FFN, i) for i, size in enumerate((100, 300, 5000, 256, 10))]
    blocks = placed(claims, 1 << 20, 0, block_bytes=1024).blocks
    assert [[claim.name for claim in block.claims] for block in blocks] == [["0", "1"], ["2"], ["3", "4"]]
    assert [block.nbytes for block in blocks] == [256 + 512, 5120, 512]


def test_a_very_large_model_has_larger_blocks_and_not_more_of_them_than_drivers_allow() -> None:
    claims = [Claim(str(i), KIB, MemoryGroup.FFN, i) for i in range(40_000)]
    blocks = placed(claims, 1 << 40, 0, block_bytes=KIB).blocks
    assert {block.nbytes for block in blocks[:-1]} == {39 * KIB}
    assert len(blocks) == -(-40_000 // 39)


def test_blocks_are_allocated_in_the_order_in_which_they_are_loaded_whatever_their_heap() -> None:
    blocks = placed(model(), 500 * KIB, 500 * KIB, block_bytes=64 * KIB).blocks
    assert [(block.heap, block.claims[0].name) for block in blocks[:2]] == [(GTT, "embed"), (VRAM, "0.norm")]
    names = [claim.name for claim in model()]
    firsts = [names.index(block.claims[0].name) for block in blocks]
    assert firsts == sorted(firsts)
    turns = [block.heap for block, before in zip(blocks[1:], blocks, strict=False) if block.heap is not before.heap]
    assert len(turns) > 2


def test_the_table_has_a_row_for_each_group_and_heap() -> None:
    fixed = (8 + 4 * 16 + 64 + 4 + 4 * 20) * KIB
    rows = placed(model(), fixed + 2 * 100 * KIB, 1 << 20).rows()
    assert [(row.group.value, row.layers, row.nbytes // KIB, row.heap) for row in rows] == [
        ("embeddings", None, 64, GTT),
        ("output head", None, 64, VRAM),
        ("norms and biases", None, 4, VRAM),
        ("attention", (0, 3), 80, VRAM),
        ("FFN", (0, 1), 200, VRAM),
        ("FFN", (2, 3), 200, GTT),
        ("KV cache", None, 64, VRAM),
        ("workspace", None, 8, VRAM),
    ]
    assert rows[0].transforms == ("copy BF16",)
    assert rows[4].transforms == ("quantise BF16→int4",)
    assert rows[-1].transforms == ()
