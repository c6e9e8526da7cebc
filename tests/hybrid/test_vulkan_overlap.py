"""The attention on a second logical device while the first one works: steps, halves and layers at the same time."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from tests.engine.answers import answer, prompt_of
from tests.engine.test_requests import check_all_freed
from unicorn_async.config import AttentionTarget, SplitMode
from unicorn_async.hybrid.vulkan_attention import VulkanFarAttention, VulkanPass
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.conftest import OpenEngine

pytestmark = pytest.mark.usefixtures("nothing_left")


async def test_both_devices_work_at_the_same_time(
    open_engine: OpenEngine, there: AttentionTarget, tmp_path: Path
) -> None:
    path = tmp_path / "steps.json"
    options = {"attention": there, "attention_split": SplitMode.ALWAYS, "step_trace": path}
    async with open_engine(**options) as engine:
        await engine.loaded()
        num_layers = engine.model_spec.num_layers
        await asyncio.gather(*(answer(engine, prompt_of(120, seed), max_tokens=4) for seed in range(4)))
        stats = engine.stats().attention
    assert stats is not None
    assert 0 < stats.both_s <= min(stats.near_s, stats.far_s)
    assert max(stats.near_s, stats.far_s) <= stats.step_s
    assert 0 <= stats.bubble_share < 1
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    of_halves = [{event["args"]["step"] for event in events if event["args"]["half"] == half} for half in "AB"]
    split_steps = set.intersection(*of_halves)  # whole ones are in one of them
    assert split_steps
    for step in split_steps:
        for half in "AB":
            of_half = [event for event in events if event["args"]["step"] == step and event["args"]["half"] == half]
            near = {event["args"]["layer"]: event for event in of_half if event["cat"] == "model"}
            far = {event["args"]["layer"]: event for event in of_half if event["cat"] == "attention"}
            assert sorted(near) == list(range(num_layers + 1))
            assert sorted(far) == list(range(num_layers))
            for layer in range(num_layers):  # each waits for the other device, and for nothing else
                assert near[layer]["ts"] + near[layer]["dur"] <= far[layer]["ts"] + 1
                assert far[layer]["ts"] + far[layer]["dur"] <= near[layer + 1]["ts"] + 1
    both = [
        (a, b)
        for a in events
        for b in events
        if a["cat"] == "model"
        and b["cat"] == "attention"
        and max(a["ts"], b["ts"]) < min(a["ts"] + a["dur"], b["ts"] + b["dur"])
    ]
    assert any(a["args"]["half"] != b["args"]["half"] for a, b in both)


async def test_a_half_of_the_next_step_begins_while_the_other_half_of_this_one_attends(
    open_engine: OpenEngine, there: AttentionTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, attend, order = 10, VulkanFarAttention.attend, asyncio.Event()

    async def held_up(attention: VulkanFarAttention, turn: VulkanPass, layer: int) -> None:
        if (turn.step, turn.half, layer) == (held + 1, 0, 0):
            order.set()
        if (turn.step, turn.half, layer) == (held, 1, 1):
            await asyncio.wait_for(order.wait(), 60)
        await attend(attention, turn, layer)

    async with open_engine(attention=there, attention_split=SplitMode.NEVER) as engine:
        expected = [(await answer(engine, prompt_of(8, seed), max_tokens=16)).ids for seed in range(4)]
    monkeypatch.setattr(VulkanFarAttention, "attend", held_up)
    async with open_engine(attention=there, attention_split=SplitMode.ALWAYS) as engine:
        await engine.loaded()
        found = await asyncio.gather(*(answer(engine, prompt_of(8, seed), max_tokens=16) for seed in range(4)))
    assert order.is_set()
    assert [one.ids for one in found] == expected


async def test_a_prompt_s_next_step_follows_it_through_the_layers(
    open_engine: OpenEngine, there: AttentionTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole steps: the second one's first layer attends before the first one's last layer."""
    attend, order, attended = VulkanFarAttention.attend, asyncio.Event(), []

    async def held_up(attention: VulkanFarAttention, turn: VulkanPass, layer: int) -> None:
        if (turn.step, layer) == (1, 0):
            order.set()
        if (turn.step, layer) == (0, 1):
            await asyncio.wait_for(order.wait(), 60)
        await attend(attention, turn, layer)
        attended.append((turn.step, layer))

    async with open_engine(max_num_batched_tokens=32) as engine:
        expected = (await answer(engine, prompt_of(60), max_tokens=4)).ids
    monkeypatch.setattr(VulkanFarAttention, "attend", held_up)
    options = {"attention": there, "attention_split": SplitMode.NEVER, "max_num_batched_tokens": 32}
    async with open_engine(**options) as engine:
        await engine.loaded()
        assert (await answer(engine, prompt_of(60), max_tokens=4)).ids == expected
    assert order.is_set()
    for layer in range(engine.model_spec.num_layers):
        assert attended.index((0, layer)) < attended.index((1, layer))


async def test_a_request_may_be_cancelled_while_both_devices_work(
    open_engine: OpenEngine, there: AttentionTarget
) -> None:
    async with open_engine(attention=there, attention_split=SplitMode.ALWAYS) as engine:
        alone = await answer(engine, max_tokens=24)
        asking = [asyncio.create_task(answer(engine, prompt_of(100, seed), max_tokens=200)) for seed in range(4)]
        other = asyncio.create_task(answer(engine, max_tokens=24))
        began = engine.stream(prompt_of(100, 9), SamplingParams(max_tokens=200))
        await anext(began)  # all that asked before are running by then
        await began.aclose()
        for task in asking:
            task.cancel()
        assert (await other).ids == alone.ids
        await check_all_freed(engine)
