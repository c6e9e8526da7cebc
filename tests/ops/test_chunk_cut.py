from __future__ import annotations

from dataclasses import replace

from tests.gpu.made_up import INTEGRATED, SOFTWARE
from unicorn_async.ops.chunk_cut import chunk_cut


def test_a_state_is_cut_into_less_where_lanes_hold_little_or_workgroups_share_little() -> None:
    large = replace(INTEGRATED, max_shared_memory=48 << 10)
    cuts = [chunk_cut(info) for info in (large, replace(large, max_shared_memory=32 << 10), SOFTWARE)]
    assert [(cut.columns, cut.lanes, cut.ahead) for cut in cuts] == [(32, 128, 4), (16, 64, 4), (16, 64, 1)]
