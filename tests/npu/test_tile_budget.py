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
    assert 2 * layout.rows * layout.head_dim == CORE_BUFFER_BYTES
    assert layout.num_strips * layout.chip.tile_n == layout.rows


def test_the_figures_are_those_of_a_count_by_hand() -> None:
    layout = HeadLayout(NPU1, 128)
    # q 8192, results 16384, sums 8 · 16 · 4, exponents 8 · 16 · 2, parameters 64 + 8 · 16 · 8, two counters
    assert budget.parameter_bytes(layout) == 1088
    assert budget.state_bytes(layout) == 26496 == -(-(8192 + 16384 + 512 + 256 + 1088 + 8) // 64) * 64
    core = budget.uses(layout)[0]
    assert core.needed == 26496 + 8 + 512 + 64 + 4096 + 2 * 128 * 4 * 4 + 3 * 8192 and core.available == 65536


def test_what_does_not_fit_is_named() -> None:
    wide = replace(NPU2, tile_n=32)
    with pytest.raises(NpuBuildError, match=r"head_dim 256: does not fit: bytes of a core's memory: [\d,]+ of 65,536"):
        budget.check(HeadLayout(wide, 256))


def test_chips_are_as_documented() -> None:
    chips: list[tuple[Chip, int, int, int]] = [(NPU1, 4, 8, 6), (NPU2, 8, 16, 16)]
    for chip, columns, cores, contexts in chips:
        assert (chip.columns, chip.num_cores, chip.max_contexts) == (columns, cores, contexts)
