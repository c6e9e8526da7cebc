from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from tests.gpu.made_up import INTEGRATED, SOFTWARE
from unicorn_async.ops.chunk_cut import chunk_cut
from unicorn_async.ops.runs import KEPT_TOKENS, SHORTEST_CHUNKED

LONG_RUN = Path(__file__).resolve().parents[2] / "shaders" / "include" / "long_run.glsl"


def test_shaders_have_the_same_chunks() -> None:
    found = dict(re.findall(r"^const uint (\w+) = (\d+);$", LONG_RUN.read_text(encoding="utf-8"), re.MULTILINE))
    assert (int(found["CHUNK"]), int(found["SHORTEST"])) == (KEPT_TOKENS, SHORTEST_CHUNKED)


def test_what_a_lane_has_under_way_and_a_workgroup_of_a_state_follows_what_they_hold() -> None:
    other = replace(INTEGRATED, subgroup_size=32, max_subgroup_size=32)
    small, large = (replace(other, max_shared_memory=size << 10) for size in (32, 48))
    rdna = replace(INTEGRATED, max_shared_memory=64 << 10)
    found = [[chunk_cut(info, key_dim, 1 << 20) for key_dim in (64, 128)] for info in (large, small, rdna, SOFTWARE)]
    cuts = [[(cut.columns, cut.lanes, cut.ahead) for cut in pair] for pair in found]
    assert cuts == [
        [(32, 128, 4), (32, 128, 4)],
        [(32, 128, 4), (16, 64, 4)],
        [(32, 128, 1), (32, 128, 1)],
        [(32, 128, 1), (16, 64, 1)],
    ]


def test_twice_the_lanes_share_a_tile_where_each_compute_unit_has_one() -> None:
    device = replace(INTEGRATED, subgroup_size=32, max_subgroup_size=32, max_shared_memory=48 << 10, compute_units=132)
    asked = ((128, 32 * 128), (128, 132 * 32), (128, 48 * 128), (64, 40 * 64))  # Qwen 3.5's mixture, dense one; RWKV-7
    assert [chunk_cut(device, *one).lanes for one in asked] == [256, 256, 128, 128]
    assert chunk_cut(replace(device, compute_units=0), 128, 4096).lanes == 128  # a device that tells nothing
    assert chunk_cut(SOFTWARE, 128, 32).lanes == 64
