"""What lanes hold of matrices, as devices have it: only the layout that a kernel counts on is taken."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from gpu.made_up import DISCRETE

from unicorn_async.ops import matrix_fragments
from unicorn_async.ops.matrix_fragments import find_matrix_fragments, holds_fragments
from unicorn_async.ops.subgroups import FRAGMENTS_FEATURE, MATRIX_FEATURE, NARROW_FEATURE, NARROW_MATRIX_FEATURE

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.gpu.device_info import DeviceInfo

Lanes = list[list[int]]
MATRICES = replace(
    DISCRETE,
    subgroup_size=32,
    min_subgroup_size=32,
    max_subgroup_size=32,
    features=DISCRETE.features | {MATRIX_FEATURE, NARROW_MATRIX_FEATURE, "subgroup_size_control"},
)


def nvidia(columns: int, registers: tuple[int, ...] = (0, 1, 2, 3)) -> Lanes:
    """mma.m16n8k16 of the PTX ISA; two elements a register."""
    lanes = []
    for lane in range(32):
        group, thread = lane >> 2, lane & 3
        pairs = [(group + 8 * (r >> 1), thread * 2 + 8 * (r & 1)) for r in registers]
        places = [(row, column + i) for row, column in pairs for i in range(2)]
        first = [row * 16 + column for row, column in places]
        second = [column * 16 + row for row, column in places][: columns // 2]
        lanes.append([8, columns // 2, *first, *second, *[0] * (8 - len(second))])
    return lanes


def rdna3(columns: int) -> Lanes:
    """WMMA of RDNA3: a row of sixteen elements in lanes l and l + 16."""
    rows = [lane % 16 for lane in range(32)]
    return [[16, 16, *(row * 16 + i for i in range(8)), *(i * 16 + row for i in range(8))] for row in rows]


def rdna4(columns: int) -> Lanes:
    """WMMA of RDNA4: half of a row in each of the two lanes."""
    places = [[(lane % 16, lane // 16 * 8 + i) for i in range(8)] for lane in range(32)]
    return [[8, 8, *(row * 16 + i for row, i in own), *(i * 16 + row for row, i in own)] for own in places]


def swapped(columns: int) -> Lanes:
    lanes = nvidia(columns)
    lanes[17][2], lanes[17][3] = lanes[17][3], lanes[17][2]
    return lanes


def other_second(columns: int) -> Lanes:
    lanes = nvidia(columns)
    lanes[31][10] += 1
    return lanes


@pytest.mark.parametrize("columns", [16, 8])
def test_the_layout_that_the_kernel_counts_on_is_known(columns: int) -> None:
    assert holds_fragments(nvidia(columns), columns)


@pytest.mark.parametrize("columns", [16, 8])
@pytest.mark.parametrize("layout", [rdna3, rdna4, swapped, other_second])
def test_no_other_layout_is_taken_for_it(layout: Callable[[int], Lanes], columns: int) -> None:
    assert not holds_fragments(layout(columns), columns)


def test_registers_in_another_order_and_lanes_that_lack_are_not_taken_for_it() -> None:
    assert not holds_fragments(nvidia(16, registers=(0, 2, 1, 3)), 16)
    assert not holds_fragments(nvidia(16)[:16], 16)


def features(monkeypatch: pytest.MonkeyPatch, info: DeviceInfo, layouts: dict[int, Callable[[int], Lanes]]) -> object:
    monkeypatch.setattr(matrix_fragments, "read_lanes", lambda device, columns: layouts[columns](columns))
    device: Any = SimpleNamespace(info=info)
    find_matrix_fragments(device)
    return device.info.features & {FRAGMENTS_FEATURE, NARROW_FEATURE}


def test_a_device_gets_the_kernels_whose_layout_its_lanes_have(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {FRAGMENTS_FEATURE, NARROW_FEATURE}
    assert features(monkeypatch, MATRICES, {16: nvidia, 8: nvidia}) == both
    assert features(monkeypatch, MATRICES, {16: nvidia, 8: other_second}) == {FRAGMENTS_FEATURE}
    assert features(monkeypatch, MATRICES, {16: rdna4, 8: nvidia}) == set()
    assert (
        features(monkeypatch, replace(MATRICES, subgroup_size=16, min_subgroup_size=16, max_subgroup_size=16), {})
        == set()
    )
