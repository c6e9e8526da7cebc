"""One NPU's attention behind the seam, without an engine."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.npu.reference import attention, from_bf16, to_bf16
from unicorn_async.config import AttentionKind, AttentionTarget, EngineConfig, ExchangeKind
from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.hybrid.busy import BusyTrack
from unicorn_async.hybrid.npu_attention import NpuFarAttention
from unicorn_async.hybrid.npu_exchange import CopiedExchange, exchange_bytes
from unicorn_async.hybrid.npu_memory import open_memory
from unicorn_async.memory.kv_plan import KVPlan
from unicorn_async.npu.geometry import NPU1, HeadLayout
from unicorn_async.npu.opening import open_attention
from unicorn_async.npu.work import AttentionHeads
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.batch import Batch, ScheduledSequence
from unicorn_async.scheduler.block_manager import BlockGroup
from unicorn_async.scheduler.sequence import Sequence
from unicorn_async.step.frame import FrameLimits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unicorn_async.gpu.device import Device

    from .npu_machine import NpuMachine

HEADS = AttentionHeads(HeadLayout(NPU1, 64), 4, 2, 32)
OPTIONS = EngineConfig(
    attention=AttentionTarget(AttentionKind.NPU),
    block_size=32,
    max_num_batched_tokens=64,
    attention_exchange=ExchangeKind.COPIED,
)
PLAN = KVPlan((BlockGroup(0, 8),), (0, 0), (HEADS.cache_bytes(8) // 2,), 128, 2 * HEADS.cache_bytes(8))
TABLE = [5, 2]
TOKENS = 40


@asynccontextmanager
async def opened(device: Device, machine: NpuMachine) -> AsyncIterator[NpuFarAttention]:
    async with (
        open_attention(HEADS, builds=machine.builds, host=machine.machine.host()) as npu,
        AsyncExitStack() as stack,
    ):
        limits = FrameLimits.of(OPTIONS, PLAN, (), 1)
        memory = await open_memory(device, npu, OPTIONS, PLAN, limits, stack)
        made = NpuFarAttention(npu, memory, OPTIONS, PLAN, BusyTrack())
        try:
            yield made
        finally:
            await made.close()
            await made.close()


def prompt(table: list[int]) -> Batch:
    """A prompt of which all is computed at once."""
    sequence = Sequence("prompt", (7,) * TOKENS, SamplingParams(), 0, block_tables=[table])
    item = ScheduledSequence(sequence, 0, TOKENS, sequence.prompt_ids, samples=True, is_decode=False)
    return Batch((item,), TOKENS, step=3)


def fill(exchange: CopiedExchange, seed: int) -> np.ndarray:
    """Write what the near device would; return the answer."""
    rng, rows = np.random.default_rng(seed), exchange.rows(TOKENS)
    for part, scale in ((rows.q, 0.125), (rows.k, 1.0), (rows.v, 1.0)):
        part[:] = to_bf16(scale * rng.standard_normal(part.shape))
    return attention(from_bf16(rows.q), from_bf16(rows.k), from_bf16(rows.v))


def check(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).mean() <= 3e-3 * np.abs(expected).mean()


async def test_a_pass_attends_layer_by_layer_and_leaves_padding_alone(device: Device, machine: NpuMachine) -> None:
    async with opened(device, machine) as made:
        table = list(TABLE)
        turn = await made.begin(0, 1, prompt(table), 48)
        table[:] = [-1, -1]  # later steps change the tables
        exchange = made.exchanges[1]
        for layer in range(2):
            expected = fill(exchange, layer)
            await turn.attend(layer)
            check(exchange.rows(TOKENS).result, expected)
            assert not exchange.rows(64).result[TOKENS:].any()
        spans = made._track.take(3)
        assert [(span.half, span.layer) for span in spans] == [(1, 0), (1, 1)]


async def test_nothing_is_written_under_a_run_that_an_abandoned_pass_has_left(
    device: Device, machine: NpuMachine
) -> None:
    async with opened(device, machine) as made:
        exchange, cache = made.exchanges[0], made._memory.caches[0]
        turn = await made.begin(0, 0, prompt(TABLE), 48)
        fill(exchange, 0)
        machine.npu.hold.clear()
        abandoned = asyncio.create_task(turn.attend(0))
        for _ in range(20):
            await asyncio.sleep(0)
        assert machine.npu.runs == 3 and made._npu._tasks
        abandoned.cancel()
        with pytest.raises(asyncio.CancelledError):
            await abandoned
        before = cache.buffer.mapped.copy()
        fill(exchange, 1)
        untouched = exchange.rows(TOKENS).result.copy()
        waiting = asyncio.create_task(turn.attend(0))
        for _ in range(20):
            await asyncio.sleep(0)
        np.testing.assert_array_equal(cache.buffer.mapped, before)
        machine.npu.hold.set()
        await waiting
        assert not np.array_equal(cache.buffer.mapped, before)
        assert not untouched.any()
        check(exchange.rows(TOKENS).result, fill(exchange, 1))


async def test_the_device_rounds_what_it_hands_over(device: Device) -> None:
    exchange = CopiedExchange(device, HEADS, 48, name="exchange")
    pool = CommandPool(device, device.compute)
    source = device.memory.allocate(exchange.nbytes, MemoryKind.STAGING, name="values")
    try:
        assert exchange.nbytes >= exchange_bytes(HEADS, 48)
        assert source.mapped is not None
        shapes = {"q": (4, exchange.q), "k": (2, exchange.new_kv.k), "v": (2, exchange.new_kv.v)}
        values = {
            name: np.random.default_rng(heads).standard_normal((TOKENS, heads, 64)).astype(np.float32)
            for name, (heads, _) in shapes.items()
        }
        recorder = pool.recorder()
        for name, (_, address) in shapes.items():
            offset = address - exchange.q
            np.frombuffer(source.mapped, np.uint8)[offset : offset + values[name].nbytes] = (
                values[name].view(np.uint8).ravel()
            )
            recorder.copy(source, offset, exchange.rotated, offset, values[name].nbytes)
        recorder.barrier()
        exchange.record_filled(recorder, TOKENS, turn=0, layer=0)
        await device.compute.timeline.reached(device.compute.submit([recorder.end()]))
        rows = exchange.rows(TOKENS)
        for name in shapes:
            np.testing.assert_array_equal(getattr(rows, name), to_bf16(values[name]))
        assert not exchange.rows(48).result.any()
    finally:
        source.close()
        pool.close()
        exchange.close()
        exchange.close()
