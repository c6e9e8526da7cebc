from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.npu.builds import dialect_of, teams_of
from unicorn_async.npu.dialect_check import max_overhead_bytes
from unicorn_async.npu.geometry import CORE_BUFFER_BYTES, NPU1, NPU2, HeadLayout
from unicorn_async.npu.schedule import Argument, ScheduledItem, instructions, stream_bytes
from unicorn_async.npu.tile_budget import CHAIN, SHIM_DESCRIPTORS
from unicorn_async.npu.transaction import Direction, PatchAddress, PushTask, WaitToken, WriteDescriptor, decode
from unicorn_async.npu.work import AttentionHeads, SequenceWork, plan_items, spread

HEADS = AttentionHeads(HeadLayout(NPU1, 64), 4, 2, 64)


def test_neighbouring_blocks_are_read_in_one_piece() -> None:
    items = list(plan_items(HEADS, [SequenceWork(0, 1, 256, (4, 5, 6, 2))], window=0, num_blocks=10))
    assert [item.kv_head for item in items] == [0, 1]
    assert items[0].runs == (
        (8 * CORE_BUFFER_BYTES, 6 * CORE_BUFFER_BYTES),
        (4 * CORE_BUFFER_BYTES, 2 * CORE_BUFFER_BYTES),
    )
    assert items[1].runs == (
        (28 * CORE_BUFFER_BYTES, 6 * CORE_BUFFER_BYTES),
        (24 * CORE_BUFFER_BYTES, 2 * CORE_BUFFER_BYTES),
    )
    assert items[0].num_chunks == 8 and items[0].base == 0


def test_a_window_leaves_out_the_chunks_before_it() -> None:
    (item, _) = plan_items(HEADS, [SequenceWork(0, 1, 200, (-1, 7, 8, 9))], window=70, num_blocks=10)
    assert (item.base, item.num_chunks) == (128, 3)
    assert item.runs == ((8 * 2 * CORE_BUFFER_BYTES, 3 * CORE_BUFFER_BYTES),)


def test_a_prompts_chunk_is_cut_by_what_fits_into_an_item() -> None:
    heads = AttentionHeads(HeadLayout(NPU2, 256), 32, 2, 64)
    assert heads.queries_per_item == 2
    items = list(plan_items(heads, [SequenceWork(5, 5, 9, (0,))], window=0, num_blocks=1))
    assert [(i.first_query, i.num_queries, i.position) for i in items[::2]] == [(5, 2, 4), (7, 2, 6), (9, 1, 8)]
    assert [i.num_chunks for i in items[::2]] == [1, 1, 2]


@given(
    lengths=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40)), min_size=1, max_size=6),
    window=st.sampled_from([0, 1, 20, 64, 1000]),
)
def test_every_query_of_every_head_is_in_one_item_that_has_its_keys(
    lengths: list[tuple[int, int]], window: int
) -> None:
    sequences, start = [], 0
    for context, queries in lengths:
        count = min(context, queries)
        sequences.append(SequenceWork(start, count, context, tuple(range(-(-context // 64)))))
        start += count
    seen = np.zeros((start, HEADS.num_kv_heads), int)
    for item in plan_items(HEADS, sequences, window=window, num_blocks=8):
        seen[item.first_query : item.first_query + item.num_queries, item.kv_head] += 1
        last = item.position + item.num_queries - 1
        first = max(0, item.position + 1 - window) if window else 0
        keys = HEADS.layout.chunk_keys
        assert item.base <= first < item.base + keys
        assert item.base + item.num_chunks * keys > last >= item.base + (item.num_chunks - 1) * keys
        assert sum(size for _, size in item.runs) == item.num_chunks * CORE_BUFFER_BYTES
    assert (seen == 1).all()


@given(chunks=st.lists(st.integers(1, 200), max_size=60))
def test_cores_get_every_item_once_and_about_as_much_work(chunks: list[int]) -> None:
    (proto, *_) = plan_items(HEADS, [SequenceWork(0, 1, 5, (0,))], window=0, num_blocks=1)
    items = [type(proto)(0, 0, 1, 0, 0, count, ((0, count * CORE_BUFFER_BYTES),)) for count in chunks]
    cores = spread(items, 8)
    assert sorted(number for core in cores for number in core) == list(range(len(items)))
    loads = [sum(chunks[number] + 2 for number in core) for core in cores]
    assert max(loads) - min(loads) <= max([count + 2 for count in chunks], default=0)


@settings(max_examples=50)
@given(runs=st.lists(st.integers(1, 9), max_size=30), chip=st.sampled_from([NPU1, NPU2]))
def test_streams_keep_to_the_hardwares_queues_and_descriptors(runs: list[int], chip: object) -> None:
    assert chip in (NPU1, NPU2)
    cores = teams_of(NPU1)
    items = [
        ScheduledItem(
            number, tuple((CORE_BUFFER_BYTES * 3 * i, CORE_BUFFER_BYTES) for i in range(count)), 512 * number, 512
        )
        for number, count in enumerate(runs)
    ]
    plan = [(core, items[number :: len(cores)]) for number, core in enumerate(cores)]
    words = instructions(dialect_of(NPU1), plan).words()
    assert words.nbytes <= stream_bytes(items) + max_overhead_bytes(NPU1)
    under_way: dict[object, int] = {}
    outputs = 0
    descriptors = set()
    patches = []
    for operation in decode(words)[1]:
        if isinstance(operation, PushTask):
            under_way[operation.channel] = under_way.get(operation.channel, 0) + 1
            assert under_way[operation.channel] <= 2
            outputs += operation.channel.direction is Direction.TO_MEMORY
        elif isinstance(operation, WaitToken):
            under_way[operation.channel] -= 1
            assert under_way[operation.channel] >= 0
        elif isinstance(operation, WriteDescriptor):
            descriptors.add(operation.index)
        elif isinstance(operation, PatchAddress):
            patches.append((operation.argument, operation.offset))
    assert not any(under_way.values())
    assert outputs == len(items)
    assert max(descriptors, default=0) < SHIM_DESCRIPTORS and CHAIN == 3
    assert len(patches) == len(set(patches)) + sum(runs) - len({offset for item in items for offset, _ in item.runs})
    assert {offset for argument, offset in patches if argument == Argument.RESULTS} == {i.result_offset for i in items}


def test_a_run_that_is_too_long_for_a_descriptor_is_cut() -> None:
    item = ScheduledItem(0, ((0, 5 << 23),), 0, 512)
    _, operations = decode(instructions(dialect_of(NPU1), [(teams_of(NPU1)[0], [item])]).words())
    sizes = [o.nbytes for o in operations if isinstance(o, WriteDescriptor)]
    assert sizes == [512, 2 * CORE_BUFFER_BYTES, 1 << 24, 1 << 24, 1 << 23]
