"""Packets, results and caches in memory of the host that the NPU reads, and another device could."""

from __future__ import annotations

import gc
import sys
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.npu.steps import Query, Step
from tests.npu.test_attention import HEADS, MIXED, layer_syncs, opened
from unicorn_async.errors import ConfigError, MissingFeatureError, NpuContextLostError, NpuError, OutOfMemoryError
from unicorn_async.gpu.host_pages import PAGE_BYTES, SharedPages
from unicorn_async.npu.attention import NpuOptions
from unicorn_async.npu.cache import NpuCache
from unicorn_async.npu.packets import write_queries
from unicorn_async.npu.schedule import PACKET_BYTES
from unicorn_async.npu.shared import SharedPackets, first_rows, max_items, result_elements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.npu.fake_xrt import Npu
    from unicorn_async.npu.attention import AttentionService
    from unicorn_async.npu.context import Context
    from unicorn_async.npu.device import Device
    from unicorn_async.npu.step import PreparedStep


@pytest.fixture
def pages() -> Iterator[list[SharedPages]]:
    """Pages to be closed behind all else."""
    made: list[SharedPages] = []
    yield made
    for one in made:
        one.close()
        one.close()


class Other:
    """What another device would do in the shared memory, done by hand."""

    def __init__(self, attention: AttentionService, pages: list[SharedPages], num_items: int, num_blocks: int) -> None:
        layout = attention.heads.layout
        sizes = (num_items * PACKET_BYTES, num_items * layout.result_bytes, attention.heads.cache_bytes(num_blocks))
        pages += [SharedPages(size) for size in sizes]
        self.memory = [np.frombuffer(one.view, np.uint8) for one in pages[-3:]]
        self.buffers = [attention.wrap(one.view, name="shared") for one in pages[-3:]]
        self.packets = SharedPackets(self.buffers[0], self.buffers[1], layout)
        self.cache = NpuCache(self.buffers[2], attention.heads, num_blocks)

    def fill(self, step: Step, prepared: PreparedStep) -> None:
        heads = step.heads
        for part in prepared.parts:
            write_queries(self.memory[0][part.first * PACKET_BYTES :], heads, part, step.q)

    def results(self, step: Step, prepared: PreparedStep) -> np.ndarray:
        heads, out = step.heads, step.poisoned()
        tile_n, dim = heads.layout.chip.tile_n, heads.layout.head_dim
        results = self.memory[1].view(np.float32)
        for token, item, first in zip(*first_rows(prepared), strict=True):
            for head in range(heads.num_heads):
                strip, lane = divmod(int(first) + head % heads.group, tile_n)
                start = (int(item) + head // heads.group) * result_elements(prepared) + strip * dim * tile_n + lane
                out[token, head] = results[start : start + dim * tile_n : tile_n]
        return out

    def close(self) -> None:
        self.memory.clear()
        for buffer in self.buffers:
            buffer.close()


def prepared_for(step: Step, attention: AttentionService) -> PreparedStep:
    return attention.prepare(
        step.work, num_tokens=step.num_tokens, num_blocks=step.num_blocks, window=step.window, is_shared=True
    )


@pytest.mark.parametrize(("items_per_run", "faults"), [(3, []), (256, []), (11, ["ok", "timeout", "timeout"])])
async def test_steps_follow_each_other_in_the_same_memory(
    context: Context, npu: Npu, pages: list[SharedPages], items_per_run: int, faults: list[str]
) -> None:
    """Layers with and without a window, steps of different shapes; what the NPU wrote stays in no copy of the host.

    Where runs time out, their halves read and write where the whole ones would have.
    """
    npu.faults.extend(faults)
    async with opened(context, options=NpuOptions(items_per_run=items_per_run)) as attention:
        steps = [Step(HEADS, MIXED), Step(HEADS, MIXED, window=20), Step(HEADS, [Query(90, 2), Query(5)], seed=1)]
        num_items = max_items(HEADS, 40, len(MIXED))
        other = Other(attention, pages, num_items, max(step.num_blocks for step in steps))
        assert npu.wrapped_bytes == sum(buffer.nbytes for buffer in other.buffers)
        plans = [prepared_for(step, attention) for step in steps]
        for step, plan in zip((*steps, *steps), (*plans, *plans), strict=True):
            fewer = NpuCache(other.buffers[2], HEADS, step.num_blocks)
            for row in range(len(step.sequences)):
                fewer.write(step.k[row], step.v[row], step.slots(row))
            other.fill(step, plan)
            await attention.submit_shared(plan, packets=other.packets, cache=fewer)
            step.check(other.results(step, plan))
        await attention.close()
        other.close()
    assert npu.wrapped_bytes == 0


async def test_a_layer_in_shared_memory_syncs_its_queries_and_results_and_nothing_else(
    context: Context, npu: Npu, pages: list[SharedPages]
) -> None:
    async with opened(context, options=NpuOptions(num_runs=1)) as attention:
        step = Step(HEADS, MIXED)
        other = Other(attention, pages, max_items(HEADS, step.num_tokens, len(MIXED)), step.num_blocks)
        plan = prepared_for(step, attention)
        await attention.submit_shared(plan, packets=other.packets, cache=other.cache)
        npu.syncs.clear()
        await attention.submit_shared(plan, packets=other.packets, cache=other.cache)
        assert npu.syncs == layer_syncs(plan)
        other.close()


async def test_what_did_nothing_in_a_new_context_is_seen_in_shared_results_too(
    context: Context, npu: Npu, pages: list[SharedPages]
) -> None:
    async with opened(context, options=NpuOptions(num_runs=1, items_per_run=4)) as attention:
        step = Step(HEADS, MIXED)
        other = Other(attention, pages, max_items(HEADS, step.num_tokens, len(MIXED)), step.num_blocks)
        plan = prepared_for(step, attention)
        for row in range(len(step.sequences)):
            other.cache.write(step.k[row], step.v[row], step.slots(row))
        other.fill(step, plan)
        npu.faults = deque(["abort", "ok"])
        await attention.submit_shared(plan, packets=other.packets, cache=other.cache)
        step.check(other.results(step, plan))
        npu.faults = deque(["ok", "abort", "no work"])
        with pytest.raises(NpuContextLostError, match="ended without results"):
            await attention.submit_shared(plan, packets=other.packets, cache=other.cache)
        await attention.close()
        other.close()


async def test_what_another_device_wrote_is_seen_once_it_is_shown(context: Context, pages: list[SharedPages]) -> None:
    async with opened(context) as attention:
        step = Step(HEADS, [Query(37)])
        other = Other(attention, pages, 8, step.num_blocks)
        plan = prepared_for(step, attention)
        cache = step.fill(attention)
        other.memory[2][:] = cache.buffer.mapped
        cache.close()
        other.fill(step, plan)
        await attention.submit_shared(plan, packets=other.packets, cache=other.cache)
        assert not np.nan_to_num(other.results(step, plan)).any()  # all values were zero
        other.cache.show(step.slots(0))
        await attention.submit_shared(plan, packets=other.packets, cache=other.cache)
        step.check(other.results(step, plan))
        other.close()


async def test_steps_of_the_other_kind_and_too_large_ones_are_refused(
    context: Context, pages: list[SharedPages]
) -> None:
    async with opened(context) as attention:
        step = Step(HEADS, MIXED)
        other = Other(attention, pages, 4, step.num_blocks)
        with pytest.raises(ConfigError, match="other kind"):
            await attention.submit_shared(step.prepare(attention), packets=other.packets, cache=other.cache)
        with pytest.raises(ConfigError, match="other kind"):
            await attention.submit(prepared_for(step, attention), q=step.q, cache=other.cache, out=step.poisoned())
        with pytest.raises(ConfigError, match=r"items in packets for 4"):
            await attention.submit_shared(prepared_for(step, attention), packets=other.packets, cache=other.cache)
        other.close()


def test_no_step_has_more_items_than_is_said() -> None:
    assert max_items(HEADS, 512, 32) == 2 * (32 + 512 // HEADS.queries_per_item)
    assert max_items(HEADS, 8, 32) == 2 * 8


@pytest.mark.parametrize(
    ("user_pointers", "error", "wanted"),
    [("absent", MissingFeatureError, "no ext.bo"), ("refused", NpuError, "wrapping 4,096 bytes.*err=-22")],
)
def test_an_xrt_that_takes_no_memory_of_others_says_so(
    device: Device,
    npu: Npu,
    pages: list[SharedPages],
    monkeypatch: pytest.MonkeyPatch,
    user_pointers: str,
    error: type[Exception],
    wanted: str,
) -> None:
    npu.user_pointers = user_pointers
    monkeypatch.setitem(sys.modules, "pyxrt", npu.module())
    pages.append(SharedPages(1))
    with pytest.raises(error, match=wanted):
        device.wrap(pages[0].view, name="pages")
    assert device.num_buffers == 0


def test_an_ext_bo_of_before_user_pointers_is_told_apart(
    device: Device, npu: Npu, pages: list[SharedPages], monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(*_: object) -> None:
        raise TypeError("incompatible constructor arguments")

    monkeypatch.setattr(sys.modules["pyxrt"].ext, "bo", older)
    pages.append(SharedPages(1))
    with pytest.raises(MissingFeatureError, match="takes no memory of others: incompatible"):
        device.wrap(pages[0].view, name="pages")


def test_memory_that_can_not_be_locked_is_told(device: Device, npu: Npu, pages: list[SharedPages]) -> None:
    npu.memory_limit = PAGE_BYTES
    pages.append(SharedPages(PAGE_BYTES + 1))
    with pytest.raises(OutOfMemoryError, match=r"wrapping 8,192 bytes.*memlock"):
        device.wrap(pages[0].view, name="pages")


def test_the_double_tells_when_pages_go_before_the_buffer(device: Device, npu: Npu) -> None:
    pages = SharedPages(1)
    buffer = device.wrap(pages.view, name="pages")
    pages.close()
    buffer.close()
    gc.collect()
    assert npu.unmapped_first == 1
    npu.unmapped_first = 0
