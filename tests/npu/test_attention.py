from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.npu.builds import write_build
from tests.npu.machine import Machine
from tests.npu.run_waits import runs_started
from tests.npu.steps import Query, Step
from tests.npu.xrt_enums import Direction
from unicorn_async.errors import ConfigError, NpuError, OutOfMemoryError, UnsupportedModelError
from unicorn_async.npu.attention import AttentionService, NpuOptions
from unicorn_async.npu.context import Context
from unicorn_async.npu.device import Device
from unicorn_async.npu.geometry import CORE_BUFFER_BYTES, NPU1, NPU2, HeadLayout
from unicorn_async.npu.schedule import Argument
from unicorn_async.npu.work import AttentionHeads, SequenceWork

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.npu.fake_xrt import Npu
    from unicorn_async.npu.attention import PreparedStep
    from unicorn_async.npu.geometry import Chip

MIXED = [Query(37), Query(61, 25), Query(1), Query(150), Query(18, 18), Query(90, 2), Query(64)]
HEADS = AttentionHeads(HeadLayout(NPU1, 64), 4, 2, 64)


@asynccontextmanager
async def opened(context: Context, heads: AttentionHeads = HEADS, **options: Any) -> AsyncIterator[AttentionService]:
    attention = AttentionService(context, heads, **options)
    try:
        yield attention
    finally:
        await attention.close()


@pytest.mark.parametrize("window", [0, 20, 64])
@pytest.mark.parametrize(
    ("chip", "head_dim", "group"), [(NPU1, 64, 1), (NPU1, 128, 2), (NPU1, 256, 4), (NPU2, 64, 8), (NPU2, 128, 5)]
)
async def test_a_mixed_batch_equals_the_reference(
    tmp_path: Path, npu: Npu, chip: Chip, head_dim: int, group: int, window: int
) -> None:
    heads = AttentionHeads(HeadLayout(chip, head_dim), 2 * group, 2, 64)
    step = Step(heads, MIXED, window=window)
    with Device.open(Machine(tmp_path / "machine", chip).host()) as device:
        context = Context(device, write_build(tmp_path / "builds", chip, head_dim))
        async with opened(context, heads) as attention:
            step.check(await step.run(attention))
        context.close()


async def test_layers_share_a_prepared_step_and_each_has_its_own_cache(context: Context) -> None:
    async with opened(context) as attention:
        layers = [Step(HEADS, MIXED, seed=0) for _ in range(5)]
        rng = np.random.default_rng(9)
        for layer in layers[1:]:
            layer.v = [rng.permutation(v) for v in layer.v]
        prepared = layers[0].prepare(attention)
        for layer in layers:
            cache, out = layer.fill(attention), layer.poisoned()
            await attention.submit(prepared, q=layer.q, cache=cache, out=out)
            layer.check(out)
            cache.close()
        assert attention.counts.runs == 5


async def test_calls_at_the_same_time_do_not_mix(context: Context) -> None:
    async with opened(context) as attention:
        steps = [Step(HEADS, MIXED, window=window, seed=seed) for seed, window in enumerate((0, 20, 0, 7, 100))]
        for step, found in zip(steps, await asyncio.gather(*(step.run(attention) for step in steps)), strict=True):
            step.check(found)


async def test_a_step_that_does_not_fit_into_a_run_is_cut(context: Context) -> None:
    options = NpuOptions(items_per_run=3)
    async with opened(context, options=options) as attention:
        step = Step(HEADS, MIXED)
        assert len(step.prepare(attention).parts) > 3
        step.check(await step.run(attention))
    async with opened(context, options=NpuOptions(instruction_bytes=4096)) as attention:
        sizes = [part.stream.nbytes for part in step.prepare(attention).parts]
        assert len(sizes) > 1 and max(sizes) <= 4096
        step.check(await step.run(attention))


async def test_a_soft_cap_reaches_the_kernels(context: Context) -> None:
    step = Step(HEADS, MIXED)
    step.q += np.uint16(5 << 7)  # 32 times as large
    async with opened(context, soft_cap=3.0) as attention:
        step.check(await step.run(attention), soft_cap=3.0)


async def test_a_token_that_is_written_later_is_seen_by_the_next_run(context: Context) -> None:
    step = Step(HEADS, [Query(70)])
    async with opened(context) as attention:
        cache, out = attention.allocate_cache(step.num_blocks), step.poisoned()
        cache.write(step.k[0][:69], step.v[0][:69], step.slots(0)[:69])
        await attention.submit(step.prepare(attention), q=step.q, cache=cache, out=out)
        early = out.copy()
        cache.write(step.k[0][69:], step.v[0][69:], step.slots(0)[69:])
        await attention.submit(step.prepare(attention), q=step.q, cache=cache, out=out)
        cache.close()
    step.check(out)
    assert not np.allclose(early, out, equal_nan=True)


async def test_a_token_is_synced_chunk_by_chunk_and_nothing_else(context: Context, npu: Npu) -> None:
    async with opened(context) as attention:
        cache = attention.allocate_cache(16)
        npu.syncs.clear()
        k = np.zeros((1, HEADS.num_kv_heads, 64), np.uint16)
        cache.write(k, k, np.array([77]))
        assert sum(size for *_, size in npu.syncs) == HEADS.num_kv_heads * 8192
        cache.close()


async def test_a_prompts_keys_and_values_are_read_once_for_both_cores_of_a_team_and_all_cores_work(
    context: Context, npu: Npu
) -> None:
    step = Step(HEADS, [Query(512, 512)])
    async with opened(context) as attention:
        step.check(await step.run(attention))
    # 8 items of 64 queries for each kv head see 2, 4, ..., 16 chunks, 72 in all; with a stream for each core they would
    # be 16 items of 32 queries that see 1, 2, ..., 16 chunks, 136 in all.
    assert npu.array.bytes_of_argument[Argument.CACHE] == 2 * 72 * CORE_BUFFER_BYTES
    products = [core.tile_products for team in npu.array.teams for core in team.cores]
    assert len(products) == NPU1.num_cores and min(products) > 0.8 * max(products)


async def test_a_decoded_tokens_strips_go_round_a_teams_cores(context: Context, npu: Npu) -> None:
    heads = AttentionHeads(HEADS.layout, 16, 2, 64)
    step = Step(heads, [Query(100)] * 4)
    async with opened(context, heads) as attention:
        step.check(await step.run(attention))
    assert len({core.tile_products for team in npu.array.teams for core in team.cores}) == 1


async def test_a_layer_syncs_its_queries_and_results_and_nothing_else(context: Context, npu: Npu) -> None:
    step = Step(HEADS, MIXED)
    async with opened(context, options=NpuOptions(num_runs=1)) as attention:
        cache, prepared = step.fill(attention), step.prepare(attention)
        await attention.submit(prepared, q=step.q, cache=cache, out=step.poisoned())
        npu.syncs.clear()
        await attention.submit(prepared, q=step.q, cache=cache, out=step.poisoned())
        cache.close()
    assert npu.syncs == layer_syncs(prepared)


def layer_syncs(step: PreparedStep) -> list[tuple[Direction, int, int]]:
    """What is synced once parameters and instructions are there: a packet is 16 KB, its queries start in the middle."""
    (part,) = step.parts
    query_bytes = part.strips * HEADS.layout.strip_bytes // 2  # bf16, where results are f32
    assert 0 < query_bytes <= 8192
    queries = [
        (Direction.XCL_BO_SYNC_BO_TO_DEVICE, 24576 * item + 8192, query_bytes) for item in range(len(part.items))
    ]
    return [*queries, (Direction.XCL_BO_SYNC_BO_FROM_DEVICE, 0, len(part.items) * part.result_bytes)]


async def test_a_windows_run_reads_the_windows_chunks_alone(context: Context, npu: Npu) -> None:
    assert npu.array is not None
    async with opened(context) as attention:
        step = Step(HEADS, [Query(2050)], window=64)
        await step.run(attention)
        chunks_and_packets = (3 + 2) * HEADS.num_kv_heads
        assert npu.array.bytes_read == chunks_and_packets * 8192


async def test_an_empty_step_does_nothing(context: Context, npu: Npu) -> None:
    async with opened(context) as attention:
        cache = attention.allocate_cache(1)
        step = attention.prepare([], num_tokens=2, num_blocks=1, window=0)
        shape = (2, 4, 64)
        await attention.submit(step, q=np.zeros(shape, np.uint16), cache=cache, out=np.zeros(shape, np.float32))
        cache.close()
    assert npu.runs == 0


@pytest.mark.parametrize("when", ["frame", "run"])
async def test_a_cancelled_call_writes_nothing_more_and_gives_its_buffers_back(
    context: Context, npu: Npu, when: str
) -> None:
    step = Step(HEADS, MIXED)
    async with opened(context, options=NpuOptions(num_runs=1)) as attention:
        cache, prepared = step.fill(attention), step.prepare(attention)
        npu.hold.clear()
        outs = [step.poisoned() for _ in range(2)]
        calls = [asyncio.create_task(attention.submit(prepared, q=step.q, cache=cache, out=out)) for out in outs]
        await runs_started(npu, 1)
        victim = calls[0 if when == "run" else 1]
        victim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await victim
        npu.hold.set()
        await asyncio.gather(*calls, return_exceptions=True)
        await attention.drain()
        assert np.isnan(outs[calls.index(victim)]).all()
        step.check(outs[1 - calls.index(victim)])
        step.check(await step.run(attention))
        cache.close()


async def test_a_call_cancelled_between_two_runs_leaves_all_frames_free(context: Context, npu: Npu) -> None:
    step = Step(HEADS, MIXED)
    async with opened(context, options=NpuOptions(items_per_run=2)) as attention:
        cache, prepared = step.fill(attention), step.prepare(attention)
        for delay in range(12):
            npu.hold.clear()
            call = asyncio.create_task(attention.submit(prepared, q=step.q, cache=cache, out=step.poisoned()))
            for _ in range(delay):
                await asyncio.sleep(0)
            call.cancel()
            npu.hold.set()
            with pytest.raises(asyncio.CancelledError):
                await call
        await attention.drain()
        cache.close()
        step.check(await step.run(attention))


async def test_a_cancelled_call_leaves_no_thread_that_reads_or_writes_its_arrays(
    context: Context, npu: Npu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unicorn_async.npu.flight.THREAD_BYTES", 0)
    step = Step(HEADS, MIXED)
    async with opened(context, options=NpuOptions(items_per_run=4)) as attention:
        cache, prepared = step.fill(attention), step.prepare(attention)
        for delay in range(0, 60, 3):
            out = step.poisoned()
            call = asyncio.create_task(attention.submit(prepared, q=step.q, cache=cache, out=out))
            for _ in range(delay):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])
            left = out.copy()
            await attention.drain()
            np.testing.assert_array_equal(out, left)
        step.check(await step.run(attention))
        cache.close()


async def test_closing_while_a_thread_copies_waits_for_it(
    context: Context, npu: Npu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unicorn_async.npu.flight.THREAD_BYTES", 0)
    step = Step(HEADS, MIXED)
    for delay in range(1, 9, 2):
        attention = AttentionService(context, HEADS)
        cache, prepared = step.fill(attention), step.prepare(attention)
        call = asyncio.create_task(attention.submit(prepared, q=step.q, cache=cache, out=step.poisoned()))
        for _ in range(delay):
            await asyncio.sleep(0)
        closing = asyncio.create_task(attention.close())
        for _ in range(delay):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([call, closing])
        assert context.device.num_buffers == 1  # the cache
        cache.close()


async def test_closing_waits_for_runs_and_refuses_calls_that_wait(context: Context, npu: Npu) -> None:
    step = Step(HEADS, MIXED)
    attention = AttentionService(context, HEADS, options=NpuOptions(num_runs=1))
    cache, prepared = step.fill(attention), step.prepare(attention)
    npu.hold.clear()
    outs = [step.poisoned() for _ in range(2)]
    calls = [asyncio.create_task(attention.submit(prepared, q=step.q, cache=cache, out=out)) for out in outs]
    await runs_started(npu, 1)
    closing = asyncio.create_task(attention.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    npu.hold.set()
    await closing
    await calls[0]
    step.check(outs[0])
    with pytest.raises(NpuError, match="closed"):
        await calls[1]
    with pytest.raises(NpuError, match="closed"):
        await attention.submit(prepared, q=step.q, cache=cache, out=outs[0])
    await attention.close()
    cache.close()


@pytest.mark.parametrize(
    ("work", "wanted"),
    [
        (SequenceWork(0, 1, 0, (0,)), "the last of 0 tokens"),
        (SequenceWork(3, 2, 9, (0,)), "queries 3 to 4 of 4 rows"),
        (SequenceWork(-1, 1, 9, (0,)), "queries -1"),
        (SequenceWork(0, 0, 9, (0,)), "queries 0 to -1"),
        (SequenceWork(0, 1, 65, (0,)), "65 tokens in blocks"),
        (SequenceWork(0, 1, 9, (2,)), "0 to 1"),
        (SequenceWork(0, 1, 9, (-1,)), "0 to 1"),
    ],
)
async def test_rows_lengths_and_blocks_that_do_not_fit_are_refused(
    context: Context, work: SequenceWork, wanted: str
) -> None:
    async with opened(context) as attention:
        with pytest.raises(ConfigError, match=wanted):
            attention.prepare([work], num_tokens=4, num_blocks=2, window=0)
        with pytest.raises(ConfigError, match="window"):
            attention.prepare([], num_tokens=4, num_blocks=2, window=-1)


async def test_arrays_of_other_shapes_are_refused(context: Context, npu: Npu) -> None:
    step = Step(HEADS, [Query(5)])
    async with opened(context) as attention:
        cache, prepared, out = step.fill(attention), step.prepare(attention), step.poisoned()
        wrong: list[dict[str, Any]] = [
            {"q": step.q[1:]},
            {"q": step.q.astype(np.float32)},
            {"out": out[:, 1:]},
            {"out": out.astype(np.float64)},
            {"cache": attention.allocate_cache(7)},
        ]
        for change in wrong:
            with pytest.raises(ConfigError, match="expected"):
                await attention.submit(prepared, **{"q": step.q, "cache": cache, "out": out, **change})
        wrong[-1]["cache"].close()
        with pytest.raises(ConfigError, match="slots from 0 to 63"):
            cache.write(step.k[0], step.v[0], np.arange(5) + 60)
        with pytest.raises(ConfigError, match="shape"):
            cache.write(step.k[0], step.v[0][1:], np.arange(5))
        cache.close()


def test_heads_that_the_kernels_do_not_do_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="head_dim: expected one of 64, 128, 256, got 96"):
        HeadLayout(NPU1, 96)
    with pytest.raises(UnsupportedModelError, match="block_size: expected a multiple of 32"):
        replace(HEADS, block_size=16)
    with pytest.raises(UnsupportedModelError, match="num_heads"):
        replace(HEADS, num_heads=3)
    with pytest.raises(UnsupportedModelError, match="at most 32"):
        AttentionHeads(HeadLayout(NPU1, 256), 36, 1, 64)


async def test_a_frame_that_can_not_be_allocated_leaves_nothing_behind(context: Context, npu: Npu) -> None:
    for limit in (0, 1 << 20, 3 << 20, 9 << 20):
        npu.memory_limit = limit
        with pytest.raises(OutOfMemoryError, match="memlock"):
            AttentionService(context, HEADS)
        assert npu.buffers == 0


async def test_options_without_sense_are_refused(context: Context) -> None:
    for options in ({"num_runs": 0}, {"timeout_s": 0.0}, {"instruction_bytes": 10}):
        with pytest.raises(ConfigError):
            NpuOptions(**options)
    with pytest.raises(ConfigError, match="soft_cap"):
        AttentionService(context, HEADS, soft_cap=-1.0)
    other = AttentionHeads(HeadLayout(NPU1, 128), 2, 2, 64)
    with pytest.raises(ConfigError, match="head_dim 128"):
        AttentionService(context, other)
    async with opened(context) as attention:
        with pytest.raises(ConfigError, match="4 GiB"):
            attention.allocate_cache(1 << 20)
        with pytest.raises(ConfigError, match="block"):
            attention.allocate_cache(0)
