"""An engine while its model loads, and when the load fails."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import CheckpointError, MissingFeatureError
from unicorn_async.gpu.kernel import KernelLibrary

from .answers import PROMPT, answer, prompt_of
from .loading_gate import LoadingGate

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.engine.engine import Engine

    from .conftest import OpenEngine, WriteModel

HELD_FROM = 500_000  # bytes: enough for some of the layers, not for all


async def some_layers(engine: Engine, at_least: int = 2) -> None:
    """Wait until so many layers are active."""
    async for progress in engine.load_progress():
        if progress.layers_active >= at_least:
            return


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


async def test_a_load_that_fails_reaches_everybody(
    open_engine: OpenEngine, model_directory: WriteModel, tmp_path: Path
) -> None:
    """The file is cut between the check at the start and the reading."""
    directory = shutil.copytree(model_directory("gemma3"), tmp_path / "model")
    async with open_engine(directory) as engine:
        os.truncate(directory / "model.safetensors", 100_000)
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
