"""An engine while its model loads, and when the load fails."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.errors import CheckpointError, MissingFeatureError
from unicorn_async.gpu.kernel import KernelLibrary
from unicorn_async.ops.subgroups import matrix_subgroup_size
from unicorn_async.sampling_params import SamplingParams

from .answers import PROMPT, answer, prompt_of
from .layer_log import LayerLog
from .loading_gate import HELD_FROM, LoadingGate, some_layers

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.engine.engine import Engine

    from .conftest import OpenEngine, WriteModel


async def test_a_request_that_arrives_at_once_waits_for_layers_and_is_answered(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine() as engine:
        await engine.loaded()
        expected = await answer(engine, prompt_of(40))
    gate = LoadingGate(monkeypatch, HELD_FROM)
    async with open_engine() as engine:
        early = asyncio.create_task(answer(engine, prompt_of(40)))
        await some_layers(engine)
        assert 0.0 < engine.progress.share < 1.0
        assert not engine.progress.done
        late = asyncio.create_task(answer(engine, prompt_of(40)))
        assert engine.stats().tokens_generated == 0
        gate.open()
        assert (await early).ids == (await late).ids == expected.ids
        await engine.loaded()
        assert engine.progress.done
        assert engine.progress.share == 1.0


async def test_a_prompt_tells_how_many_layers_of_the_load_it_went_through(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = LoadingGate(monkeypatch, HELD_FROM)
    async with open_engine() as engine:
        early = engine.stream(prompt_of(40), SamplingParams(max_tokens=2), request_id="early")
        first = asyncio.ensure_future(anext(early))
        await some_layers(engine)
        while not (layers := engine.prompt_layers("early")):
            await asyncio.wait((first,), timeout=0.01)
        assert 0 < layers <= engine.progress.layers_active < engine.progress.layers_total
        gate.open()
        await first
        assert engine.prompt_layers("early") is None
        await early.aclose()


async def test_a_prompt_of_several_steps_follows_the_load_with_all_of_them(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(400)  # of 128 tokens a step
    async with open_engine() as engine:
        await engine.loaded()
        expected = await answer(engine, prompt)
    gate, log = LoadingGate(monkeypatch, HELD_FROM), LayerLog(monkeypatch)
    async with open_engine() as engine:
        early = asyncio.create_task(answer(engine, prompt))
        await log.has(layer=0, count=4)
        assert not engine.progress.done
        last_layer = engine.model_spec.num_layers - 1
        assert log.steps(last_layer) == []
        steps = log.steps(0)
        assert len(set(steps)) == 4
        gate.open()
        assert (await early).ids == expected.ids
        for layer in range(last_layer + 1):
            assert log.steps(layer)[:4] == steps


async def test_requests_that_come_one_after_the_other_follow_the_load_together(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt_of(length) for length in (40, 7, 200, 90)]
    drawn = {"temperature": 0.8, "seed": 5, "repetition_penalty": 1.3, "top_logprobs": 2}
    async with open_engine() as engine:
        await engine.loaded()
        expected = [await answer(engine, prompt) for prompt in prompts]
        expected.append(await answer(engine, prompts[2], **drawn))
        logits = await engine.logits(prompts[2])
    gate, log = LoadingGate(monkeypatch, HELD_FROM), LayerLog(monkeypatch)
    async with open_engine() as engine:
        tasks = []
        for number, prompt in enumerate(prompts[:3]):
            tasks.append(asyncio.create_task(answer(engine, prompt)))
            await log.has(layer=0, count=number + 1)
        await some_layers(engine, at_least=3)  # the first ones are half way through the model
        count = len(log.steps(0))
        tasks.append(asyncio.create_task(answer(engine, prompts[3])))
        await log.has(layer=1, count=count + 1)
        tasks.append(asyncio.create_task(answer(engine, prompts[2], **drawn)))
        evaluation = asyncio.create_task(engine.logits(prompts[2]))
        await log.has(layer=1, count=count + 3)
        assert not engine.progress.done
        assert engine.stats().tokens_generated == 0
        gate.open()
        assert [(await task).ids for task in tasks] == [answered.ids for answered in expected]
        # Matrix units, and kernels for few tokens, round otherwise: steps are cut elsewhere than without the load.
        atol = 1e-4 if matrix_subgroup_size(engine.device) is None else 1e-2
        np.testing.assert_allclose(await evaluation, logits, rtol=1e-4, atol=atol)


async def test_more_steps_than_frames_wait_for_the_load_to_end(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt_of(300, seed) for seed in range(3)]
    async with open_engine() as engine:
        await engine.loaded()
        expected = [await answer(engine, prompt) for prompt in prompts]
    gate, log = LoadingGate(monkeypatch, HELD_FROM), LayerLog(monkeypatch)
    async with open_engine(num_load_steps=3) as engine:
        tasks = [asyncio.create_task(answer(engine, prompt)) for prompt in prompts]
        await log.has(layer=0, count=3)
        gate.open()
        assert [(await task).ids for task in tasks] == [answered.ids for answered in expected]


async def test_progress_grows_to_the_whole_model_for_everyone_who_listens(open_engine: OpenEngine) -> None:
    async def listen(engine: Engine) -> list[tuple[int, int]]:
        return [(progress.bytes_loaded, progress.layers_active) async for progress in engine.load_progress()]

    async with open_engine() as engine:
        first, second = await asyncio.gather(listen(engine), listen(engine))
        late = await listen(engine)
        progress = engine.progress
    for seen in (first, second):
        assert seen == sorted(seen)
        assert seen[-1] == (progress.bytes_total, progress.layers_total) == late[0]
    assert progress.layers_total == 8  # embeddings, six layers, final norm


async def test_a_request_is_cancelled_while_it_waits_for_layers(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = LoadingGate(monkeypatch, HELD_FROM)
    async with open_engine() as engine:
        request = asyncio.create_task(answer(engine))
        await some_layers(engine)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        gate.open()
        await engine.loaded()
        await answer(engine, max_tokens=2)
        assert engine.stats().blocks_used == 0


async def test_a_request_is_cancelled_while_others_follow_the_load_beside_it(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt_of(200), prompt_of(150), prompt_of(60)]
    async with open_engine() as engine:
        await engine.loaded()
        expected = [await answer(engine, prompt) for prompt in prompts]
    gate, log = LoadingGate(monkeypatch, HELD_FROM), LayerLog(monkeypatch)
    async with open_engine() as engine:
        tasks = [asyncio.create_task(answer(engine, prompt)) for prompt in prompts]
        await log.has(layer=0, count=4)  # 410 tokens, 128 a step
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        again = asyncio.create_task(answer(engine, prompts[1]))
        await log.has(layer=0, count=5)
        gate.open()
        assert (await tasks[0]).ids == expected[0].ids
        assert (await tasks[2]).ids == expected[2].ids
        assert (await again).ids == expected[1].ids
        assert engine.stats().blocks_used == 0


async def test_a_load_that_fails_reaches_requests_that_follow_it_together(
    open_engine: OpenEngine, model_directory: WriteModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = shutil.copytree(model_directory("gemma3"), tmp_path / "model")
    gate, log = LoadingGate(monkeypatch, HELD_FROM), LayerLog(monkeypatch)
    async with open_engine(directory) as engine:
        waiting = [asyncio.create_task(answer(engine, prompt_of(length))) for length in (300, 100, 20)]
        await log.has(layer=0, count=4)
        os.truncate(directory / "model.safetensors", HELD_FROM)
        gate.open()
        for task in waiting:
            with pytest.raises(CheckpointError, match="truncated"):
                await task
        with pytest.raises(CheckpointError, match="truncated"):
            await answer(engine)


async def test_a_load_that_fails_reaches_everybody(
    open_engine: OpenEngine, model_directory: WriteModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is cut between the check at the start and the reading."""
    gate = LoadingGate(monkeypatch, held_from=0)
    directory = shutil.copytree(model_directory("gemma3"), tmp_path / "model")
    async with open_engine(directory) as engine:
        os.truncate(directory / "model.safetensors", 100_000)
        gate.open()
        waiting = [asyncio.create_task(answer(engine)), asyncio.create_task(engine.logits(PROMPT))]
        with pytest.raises(CheckpointError, match=r"model\.safetensors: truncated"):
            await engine.loaded()
        for task in waiting:
            with pytest.raises(CheckpointError, match="truncated"):
                await task
        with pytest.raises(CheckpointError, match="truncated"):
            await answer(engine)
        with pytest.raises(CheckpointError, match="truncated"):
            await engine.logits(PROMPT)
        with pytest.raises(CheckpointError, match="truncated"):
            await engine.loaded()


async def test_a_kernel_that_can_not_be_made_is_what_everybody_is_told(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(*_: object) -> None:
        raise MissingFeatureError("kernel rms_norm: the device lacks it")

    LoadingGate(monkeypatch, HELD_FROM)
    monkeypatch.setattr(KernelLibrary, "prepare", prepare)
    async with open_engine() as engine:
        waiting = [asyncio.create_task(engine.loaded()), asyncio.create_task(answer(engine))]
        for task in waiting:
            with pytest.raises(MissingFeatureError, match="the device lacks it"):
                await task
        with pytest.raises(MissingFeatureError, match="the device lacks it"):
            await engine.loaded()
