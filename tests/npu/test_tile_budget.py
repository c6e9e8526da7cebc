from __future__ import annotations

from dataclasses import replace

import pytest

from unicorn_async.errors import NpuBuildError
from unicorn_async.npu import tile_budget as budget
from unicorn_async.npu.geometry import CHIPS, CORE_BUFFER_BYTES, HEAD_DIMS, NPU1, NPU2, Chip, HeadLayout

LAYOUTS = [HeadLayout(chip, head_dim) for chip in CHIPS for head_dim in HEAD_DIMS]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_design_fits(layout: HeadLayout) -> None:
    budget.check(layout)
    assert budget.core_buffers(layout) >= 2
    for use in budget.uses(layout):
        assert 0 < use.needed <= use.available


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_chunks_and_queries_fill_a_buffer(layout: HeadLayout) -> None:
    assert 2 * 2 * layout.chunk_keys * layout.head_dim == CORE_BUFFER_BYTES
    assert 2 * layout.rows * layout.head_dim == 2 * CORE_BUFFER_BYTES
    assert layout.num_strips * layout.chip.tile_n == layout.rows


def test_the_figures_are_those_of_a_count_by_hand() -> None:
    layout = HeadLayout(NPU1, 128)
    # of an item: a header, and the bounds of 16 strips of 16 lanes
    assert budget.parameter_bytes(layout) == 64 + 16 * 16 * 8 == 2112
    # of a core: q 8192, results 16384, sums 8 · 16 · 4, exponents 8 · 16 · 2, bounds 8 · 16 · 8, a header, five words
    assert budget.state_bytes(layout) == 26496 == -(-(8192 + 16384 + 512 + 256 + 1024 + 64 + 20) // 64) * 64
    core = budget.uses(layout)[0]
    assert core.needed == 26496 + 12 + 512 + 64 + 4096 + 2 * 128 * 4 * 4 + 3 * 8192 and core.available == 65536
    # of a memory tile, for each of two teams: four buffers, and two pairs of strips
    uses = {use.what: (use.needed, use.available) for use in budget.uses(layout)}
    assert uses["bytes of a column's memory tile"] == (2 * (4 * 8192 + 2 * 2 * 128 * 4 * 4), 512 * 1024)
    # of a team: four buffers in and out, two strips of each core in, and each of these out
    assert uses["descriptors of a column's memory tile"] == (2 * (4 + 4 + 2 * 2 + 2 * 2), 48)
    # of the three receiving channels of one kind two may have buffers; of sending ones all have four
    assert uses["descriptors of its even channels or its odd ones"] == ((4 + 4 + 2) + (4 + 4), 24)
    assert uses["locks of a column's memory tile"] == (2 * (2 + 2 * 2), 64)
    assert uses["streams from a column's cores to its memory tile"] == (4, 4)
    assert uses["receiving channels of a column's memory tile"] == (2 + 4, 6)
    assert uses["sending channels of a column's memory tile"] == (2 + 2, 6)


def test_what_does_not_fit_is_named() -> None:
    wide = replace(NPU2, tile_n=32)
    with pytest.raises(NpuBuildError, match=r"head_dim 256: does not fit: bytes of a core's memory: [\d,]+ of 65,536"):
        budget.check(HeadLayout(wide, 256))


def test_chips_are_as_documented() -> None:
    chips: list[tuple[Chip, int, int, int]] = [(NPU1, 4, 16, 6), (NPU2, 8, 32, 16)]
    for chip, columns, cores, contexts in chips:
        assert (chip.columns, chip.num_cores, chip.max_contexts) == (columns, cores, contexts)
