from __future__ import annotations

from dataclasses import replace

from tests.gpu.made_up import INTEGRATED, SOFTWARE
from unicorn_async.ops.chunk_cut import chunk_cut


def test_what_a_lane_has_under_way_and_a_workgroup_of_a_state_follows_what_they_hold() -> None:
    other = replace(INTEGRATED, subgroup_size=32, max_subgroup_size=32)
    small, large = (replace(other, max_shared_memory=size << 10) for size in (32, 48))
    rdna = replace(INTEGRATED, max_shared_memory=64 << 10)
    found = [[chunk_cut(info, key_dim) for key_dim in (64, 128)] for info in (large, small, rdna, SOFTWARE)]
    cuts = [[(cut.columns, cut.lanes, cut.ahead) for cut in pair] for pair in found]
    assert cuts == [
        [(32, 128, 4), (32, 128, 4)],
        [(32, 128, 4), (16, 64, 4)],
        [(32, 128, 1), (32, 128, 1)],
        [(32, 128, 1), (16, 64, 1)],
    ]
