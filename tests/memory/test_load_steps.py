"""The frames of a load: how many steps go along with it, and what becomes of their memory."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.engine.answers import answer, prompt_of
from tests.engine.layer_log import LayerLog
from tests.engine.loading_gate import HELD_FROM, LoadingGate, some_layers
from tests.patience import wait_until
from unicorn_async.errors import DeviceLostError, OutOfMemoryError
from unicorn_async.ops.subgroups import matrix_subgroup_size
from unicorn_async.step.frame import Frame
from unicorn_async.step.logits_copy import LogitsCopy

if TYPE_CHECKING:
    from tests.engine.conftest import OpenEngine
    from unicorn_async.gpu.device import Device
    from unicorn_async.models.activations import Residual
    from unicorn_async.step.frame import FrameLimits


def fail_frame(patch: pytest.MonkeyPatch, failing: int, error: Exception) -> None:
    """Let the frame of that number not be made."""
    make_frame = Frame.__init__

    def made(frame: Frame, device: Device, limits: FrameLimits, residual: Residual, index: int) -> None:
        if index == failing:
            raise error
        make_frame(frame, device, limits, residual, index)

    patch.setattr(Frame, "__init__", made)


async def test_a_prompt_follows_the_load_through_the_blocks_of_a_window_in_any_number_of_steps(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(400)
    options = {"max_num_seqs": 1, "max_num_batched_tokens": 32}
    async with open_engine(**options) as engine:
        await engine.loaded()
        expected = await answer(engine, prompt)
        logits = await engine.logits(prompt)
        assert min(engine._scheduler.blocks_total) <= 8  # of 16 tokens
    gate, log = LoadingGate(monkeypatch, HELD_FROM), LayerLog(monkeypatch)
    async with open_engine(**options) as engine:
        early = asyncio.create_task(answer(engine, prompt))
        await log.has(layer=0, count=13)
        assert not engine.progress.done
        gate.open()
        assert (await early).ids == expected.ids
        assert log.steps(engine.model_spec.num_layers - 1) == log.steps(0)
    gate = LoadingGate(monkeypatch, HELD_FROM)
    async with open_engine(**options) as engine:
        evaluation = asyncio.create_task(engine.logits(prompt))
        await some_layers(engine)
        gate.open()
        np.testing.assert_array_equal(await evaluation, logits)


async def test_a_load_goes_on_with_the_frames_there_are_where_no_more_fit(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = prompt_of(400)
    async with open_engine(max_num_batched_tokens=32) as engine:
        await engine.loaded()
        expected = await answer(engine, prompt)
    gate, log = LoadingGate(monkeypatch, HELD_FROM), LayerLog(monkeypatch)
    fail_frame(monkeypatch, 4, OutOfMemoryError("frame 4: it does not fit"))
    async with open_engine(max_num_batched_tokens=32) as engine:
        early = asyncio.create_task(answer(engine, prompt))
        await log.has(layer=0, count=4)
        gate.open()
        assert (await early).ids == expected.ids
    assert len(set(log.steps(0))) == 4
    assert "frame 4: it does not fit; no more than 4 steps go along with the load" in caplog.text


async def test_what_else_keeps_a_frame_from_being_made_is_the_engines_failure(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, log = LoadingGate(monkeypatch, HELD_FROM), LayerLog(monkeypatch)
    fail_frame(monkeypatch, 3, DeviceLostError("frame 3: the device is lost"))
    async with open_engine(max_num_batched_tokens=32) as engine:
        early = asyncio.create_task(answer(engine, prompt_of(400)))
        await log.has(layer=0, count=3)
        gate.open()
        with pytest.raises(DeviceLostError, match="frame 3"):
            await early


async def test_an_engine_that_closes_waits_for_a_frame_that_is_made_and_frees_it(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    LoadingGate(monkeypatch, HELD_FROM)
    making, going_on = threading.Event(), threading.Event()
    made: list[Frame] = []
    closed: list[Frame] = []
    make_frame, close_frame = Frame.__init__, Frame.close

    def held_frame(frame: Frame, device: Device, limits: FrameLimits, residual: Residual, index: int) -> None:
        if len(made) == 3:
            making.set()
            going_on.wait(240)
        make_frame(frame, device, limits, residual, index)
        made.append(frame)

    def noted_close(frame: Frame) -> None:
        close_frame(frame)
        closed.append(frame)

    monkeypatch.setattr(Frame, "__init__", held_frame)
    monkeypatch.setattr(Frame, "close", noted_close)

    async def use() -> None:
        async with open_engine(max_num_batched_tokens=32) as engine:
            await answer(engine, prompt_of(400))

    using = asyncio.create_task(use())
    assert await asyncio.to_thread(making.wait, 240)
    using.cancel()
    await asyncio.wait([using], timeout=0.2)
    assert not using.done()
    going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert len(made) == 4
    assert set(closed) == set(made)


async def test_no_more_than_eight_frames_have_logits_for_the_host(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt_of(400), prompt_of(200)]
    async with open_engine(max_num_batched_tokens=32) as engine:
        await engine.loaded()
        expected, logits = await answer(engine, prompts[1]), await engine.logits(prompts[0])
    gate, log = LoadingGate(monkeypatch, HELD_FROM), LayerLog(monkeypatch)
    copies: set[LogitsCopy] = set()
    prepare = LogitsCopy.prepare

    async def noted_prepare(copy: LogitsCopy) -> None:
        if not engine.progress.done:
            copies.add(copy)
        await prepare(copy)

    monkeypatch.setattr(LogitsCopy, "prepare", noted_prepare)
    async with open_engine(max_num_batched_tokens=32) as engine:
        evaluation = asyncio.create_task(engine.logits(prompts[0]))
        await log.has(layer=0, count=8)
        request = asyncio.create_task(answer(engine, prompts[1]))
        await some_layers(engine)
        gate.open()
        assert (await request).ids == expected.ids
        atol = 1e-4 if matrix_subgroup_size(engine.device) is None else 1e-2
        np.testing.assert_allclose(await evaluation, logits, rtol=1e-4, atol=atol)
    assert len(copies) == 8


async def test_frames_that_only_the_load_needed_are_closed_after_it(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Frame] = []
    freed = threading.Event()
    close = Frame.close

    def noted_close(frame: Frame) -> None:
        close(frame)
        closed.append(frame)
        if len(closed) == 5:
            freed.set()

    monkeypatch.setattr(Frame, "close", noted_close)
    gate, log = LoadingGate(monkeypatch, HELD_FROM), LayerLog(monkeypatch)
    async with open_engine(num_load_steps=6, max_num_batched_tokens=32) as engine:
        runner = engine._model.runner
        nbytes = runner.nbytes
        request = asyncio.create_task(answer(engine, prompt_of(400)))
        await log.has(layer=0, count=6)
        frame = nbytes // 3  # of two, and the one that all steps' layers are recorded for
        assert runner.nbytes == nbytes + 4 * (frame + 2 * 4 * 32 * engine.model_spec.hidden_size)
        gate.open()
        await request
        assert await asyncio.to_thread(freed.wait, 240)
        await asyncio.to_thread(wait_until, lambda: runner.nbytes * 3 == nbytes * 2)  # told behind the last one's end
        assert len(closed) == 5  # four, and the shared one
        assert engine.memory.heaps[0].plan_agrees
        await answer(engine, prompt_of(400))
        assert len(closed) == 5
    assert len(set(closed)) == len(closed) == 7
