"""The design, on a recorder of IRON's calls: what is placed where, the cores' loops, and what moves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.npu import fake_iron
from unicorn_async.npu import tile_budget as budget
from unicorn_async.npu.geometry import CHIPS, HEAD_DIMS, HeadLayout


@pytest.mark.usefixtures("iron")
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_the_design_has_four_cores_to_a_column_and_moves_what_is_read_back(
    scripts: Any, chip: Any, head_dim: int
) -> None:
    layout = HeadLayout(chip, head_dim)
    program = scripts("attention_design").attention_design(layout)
    assert type(program.device).__name__ == chip.name.upper()
    assert [(w.tile.col, w.tile.row) for w in program.workers] == [
        (column, row) for column in range(chip.columns) for row in (2, 3, 4, 5)
    ]
    assert len(program.workers) == chip.num_cores
    assert all(worker.allocation_scheme == "basic-sequential" for worker in program.workers)
    assert all(worker.dynamic_objfifo_lowering and worker.stack_size == 4096 for worker in program.workers)
    transfers = fake_iron.TaskGroup.last.transfers
    assert fake_iron.TaskGroup.last.finished and all(wait for *_, wait in transfers)
    assert len(transfers) == 3 * chip.num_teams
    for number in range(chip.num_teams):
        pieces = {target: (4 * tap.offset, 4 * tap.sizes[3]) for _, _, target, tap, _ in transfers[3 * number :][:3]}
        assert pieces == {
            "results": (number * layout.result_bytes, layout.result_bytes),
            "packets": (number * 24576, 24576),
            "cache": (number * 8192, 8192),
        }
    buffers, strips, _, _, place, *kernels = program.workers[0].fn_args
    assert buffers.log == ["acquire 1", "release 1"] * (1 + 2 + 3) and strips.log == ["acquire 1", "release 1"] * 4
    assert [kernel.name for kernel in kernels] == [
        f"attention_{name}" for name in ("begin", "queries", "chunk", "strip")
    ]
    assert [len(kernel.calls) // chip.num_cores for kernel in kernels] == [1, 2, 3, 4]
    assert [call[3] for call in kernels[0].calls] == [0, 1] * chip.num_teams and place == 0
    assert buffers.fifo.depth == budget.core_buffers(layout)


@pytest.mark.usefixtures("iron")
@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_a_memory_tile_broadcasts_a_teams_buffers_and_joins_its_results(scripts: Any, chip: Any) -> None:
    layout = HeadLayout(chip, 128)
    program = scripts("attention_design").attention_design(layout)
    *_, sources, sinks = program.rt.fn_args
    assert len(sources) == len(sinks) == chip.num_teams
    for number, (source, sink) in enumerate(zip(sources, sinks, strict=True)):
        column, team = divmod(number, 2)
        workers = program.workers[2 * number : 2 * number + 2]
        assert source.tile == sink.tile == fake_iron.Tile(column, 0)
        ((tile, offset, shared),) = source.fifo.links
        assert (tile, offset, source.fifo.depth) == (fake_iron.Tile(column, 1), 0, 4)
        assert [worker.fn_args[0].fifo is shared for worker in workers] == [True, True]
        assert [worker.tile.row for worker in workers] == [2 + 2 * team, 3 + 2 * team]
        assert [(tile, offset) for tile, offset, _ in sink.fifo.links] == [
            (fake_iron.Tile(column, 1), place * layout.strip_bytes // 4) for place in (0, 1)
        ]
        assert [worker.fn_args[1].fifo for worker in workers] == [fifo for *_, fifo in sink.fifo.links]
        assert [worker.fn_args[4] for worker in workers] == [0, 1]
    names = {fifo.name for handle in (*sources, *sinks) for fifo in (handle.fifo, *(f for *_, f in handle.fifo.links))}
    assert len(names) == chip.num_teams * (2 + 3)
