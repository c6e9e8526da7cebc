"""How often a step goes to the device's queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from unicorn_async.gpu.queue import Queue
from unicorn_async.gpu.warm_up import WarmUp
from unicorn_async.loader.stream import LoadStream
from unicorn_async.step.submission_plan import SubmissionPlan

from .answers import answer, prompt_of
from .layer_log import LayerLog
from .loading_gate import LoadingGate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.gpu.queue import CommandBuffer
    from unicorn_async.gpu.timeline import Timeline
    from unicorn_async.step.attention_load import AttentionLoad

    from .conftest import OpenEngine

HELD_FROM = 500_000  # bytes: enough for some of the layers, not for all


@pytest.fixture
def submissions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of command buffers of each submission to a queue; there are no first uses of kernels between them."""
    monkeypatch.setattr(WarmUp, "add", lambda self, kernels: None)
    made: list[int] = []
    submit = Queue.submit

    def counted(
        queue: Queue, command_buffers: Sequence[CommandBuffer], *, waits: Sequence[tuple[Timeline, int]] = ()
    ) -> int:
        made.append(len(command_buffers))
        return submit(queue, command_buffers, waits=waits)

    monkeypatch.setattr(Queue, "submit", counted)
    return made


async def test_a_decode_step_is_one_submission(open_engine: OpenEngine, submissions: list[int]) -> None:
    async with open_engine(submission_budget_s=1e9) as engine:  # more than any machine takes
        await engine.loaded()
        before, steps = len(submissions), engine.stats().steps
        await answer(engine, max_tokens=20)
        await answer(engine, max_tokens=20, temperature=0.8, seed=1, repetition_penalty=1.1, top_logprobs=3)
        assert engine.stats().steps - steps == 40
        assert len(submissions) - before == 40


async def test_a_step_that_takes_long_is_several_submissions(open_engine: OpenEngine, submissions: list[int]) -> None:
    async with open_engine(submission_budget_s=1e-9) as engine:
        await engine.loaded()
        before, steps = len(submissions), engine.stats().steps
        await answer(engine, prompt_of(100), max_tokens=1)
        assert engine.stats().steps - steps == 1
        assert len(submissions) - before == engine.model_spec.num_layers


async def test_steps_are_cut_by_what_their_queries_see(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[SubmissionPlan] = []
    loads: list[AttentionLoad] = []

    def observe(plan: SubmissionPlan, bucket: int, load: AttentionLoad, seconds: float) -> None:
        plans.append(plan)
        loads.append(load)

    monkeypatch.setattr(SubmissionPlan, "observe", observe)
    async with open_engine() as engine:
        await engine.loaded()
        await answer(engine, prompt_of(100), max_tokens=3)
        assert [load[:4] for load in loads] == [(0, 0, 100, 100 * 100), (1, 101, 0, 0), (1, 102, 0, 0)]
        assert tuple(layer and layer.window for layer in plans[0].layers) == engine.model_spec.layer_windows


async def test_a_step_before_the_model_is_loaded_is_a_submission_for_each_layer(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, log = LoadingGate(monkeypatch, HELD_FROM), LayerLog(monkeypatch)
    async with open_engine() as engine:
        early = asyncio.create_task(answer(engine, max_tokens=1))
        await log.has(layer=0, count=1)
        gate.open()
        await early
        assert len(log.entries) == engine.model_spec.num_layers
        assert log.most_at_once == 1


async def test_a_step_behind_a_load_that_was_awaited_is_one_submission(
    open_engine: OpenEngine, submissions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer_submitted = LoadStream.layer_submitted

    async def heard_late(stream: LoadStream, layer: int) -> tuple[Timeline, int]:
        await asyncio.sleep(0.1)
        return await layer_submitted(stream, layer)

    monkeypatch.setattr(LoadStream, "layer_submitted", heard_late)
    async with open_engine(submission_budget_s=1e9) as engine:
        await engine.loaded()
        before = len(submissions)
        await answer(engine, max_tokens=1)
        assert len(submissions) - before == 1
