"""Embeddings of prompts, beside answers, against the model's own hidden states."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from unicorn_async.errors import ParameterError, PromptTooLongError, RequestError
from unicorn_async.pooling import Pooler, Pooling

from .answers import answer, prompt_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from unicorn_async.engine.engine import Engine

    from .conftest import OpenEngine, WriteModel


def says(directory: Path, mode: str, *modules: str) -> None:
    """Have a model's files say how its embeddings are made, as sentence-transformers does."""
    (directory / "1_Pooling").mkdir(exist_ok=True)
    config = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, mode: True, "include_prompt": True}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(config))
    names = ("Transformer", "Pooling", *modules)
    listed = [{"idx": i, "type": f"sentence_transformers.models.{name}"} for i, name in enumerate(names)]
    (directory / "modules.json").write_text(json.dumps(listed))


@pytest.fixture
def copied(model_directory: WriteModel, tmp_path: Path) -> Path:
    """A golden checkpoint that a test may change."""
    return shutil.copytree(model_directory("qwen3", "float32"), tmp_path / "model")


def head_table(directory: Path) -> NDArray[np.float64]:
    tensors: dict[str, NDArray[np.float32]] = {}
    for file in directory.glob("*.safetensors"):
        tensors |= load_file(file)
    return tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).astype(np.float64)


async def hidden_states(engine: Engine, ids: tuple[int, ...], directory: Path) -> NDArray[np.float64]:
    """The hidden states behind the last norm, (tokens, columns), found from logits and the head's table."""
    table = head_table(directory)
    logits = (await engine.logits(ids)).astype(np.float64)
    found, *_ = np.linalg.lstsq(table, logits.T, rcond=None)
    return found.T


def unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = values / np.linalg.norm(values)
    return result


async def test_a_plain_model_has_the_mean_of_its_hidden_states(open_engine: OpenEngine, copied: Path) -> None:
    async with open_engine(copied) as engine:
        assert engine.pooler == Pooler(Pooling.MEAN, normalises=True)
        for length in (1, 5, 200):  # within a step, and over several
            ids = prompt_of(length)
            found = await engine.embed(ids)
            exact = unit((await hidden_states(engine, ids, copied)).mean(0))
            assert found.shape == (engine.embedding_size,) and found.dtype == np.float32
            assert np.allclose(found, exact, atol=2e-3)
            assert np.linalg.norm(found) == pytest.approx(1.0, abs=1e-5)
        short = await engine.embed(prompt_of(5), dimensions=8)
        whole = (await hidden_states(engine, prompt_of(5), copied)).mean(0)
        assert np.allclose(short, unit(whole[:8]), atol=2e-3)


async def test_a_model_that_says_so_has_its_last_hidden_state_as_it_is(open_engine: OpenEngine, copied: Path) -> None:
    says(copied, "pooling_mode_lasttoken")
    async with open_engine(copied, pooling="mean") as engine:
        assert engine.pooler == Pooler(Pooling.MEAN, normalises=False)
    async with open_engine(copied) as engine:
        assert engine.pooler == Pooler(Pooling.LAST, normalises=False)
        for length in (1, 200):
            found = await engine.embed(prompt_of(length))
            states = await hidden_states(engine, prompt_of(length), copied)
            assert np.allclose(found, states[-1], atol=2e-2 * np.abs(states[-1]).max())


async def test_embeddings_beside_answers_are_those_that_come_alone(open_engine: OpenEngine) -> None:
    prompts = [prompt_of(length, length) for length in (3, 60, 150, 9, 33, 7, 80, 21, 5, 100)]
    async with open_engine() as engine:
        alone = [await engine.embed(prompt) for prompt in prompts]
        texts = [await answer(engine, prompt_of(20, n), max_tokens=40) for n in range(3)]
        cancelled = asyncio.create_task(engine.embed(prompt_of(400)))
        *together, _ = await asyncio.gather(
            *(engine.embed(prompt) for prompt in prompts),
            *(answer(engine, prompt_of(20, n), max_tokens=40) for n in range(3)),
            _cancel(cancelled),
        )
        stats = engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)
    for found, expected in zip(together[: len(prompts)], alone, strict=True):
        assert np.allclose(found, expected, atol=2e-3)
    assert [found.ids for found in together[len(prompts) :]] == [found.ids for found in texts]


async def _cancel(task: asyncio.Task[Any]) -> None:
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_nothing_stays_of_an_embedding_that_is_cancelled(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        tasks = [asyncio.create_task(engine.embed(prompt_of(400, n))) for n in range(6)]
        await engine.embed(prompt_of(5))  # in a step with some of them
        for task in tasks:
            await _cancel(task)
        await engine.embed(prompt_of(3))  # behind whose step all others have ended
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


async def test_an_embedding_that_gave_up_its_place_is_the_same(open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        alone = [await engine.embed(prompt_of(200, n)) for n in range(4)]
    async with open_engine(max_context=256, kv_cache_bytes=400 << 10, max_num_seqs=6) as engine:
        answers = [asyncio.create_task(answer(engine, prompt_of(20, n), max_tokens=150)) for n in range(2)]
        found = await asyncio.gather(*(engine.embed(prompt_of(200, n)) for n in range(4)))
        await asyncio.gather(*answers)
        assert engine.stats().preemptions > 0
    assert all(np.allclose(one, other, atol=2e-3) for one, other in zip(found, alone, strict=True))


async def test_what_has_no_embedding_is_refused(open_engine: OpenEngine, copied: Path) -> None:
    async with open_engine(copied, max_context=64) as engine:
        assert (await engine.embed(prompt_of(64))).size  # which leaves no room for an answer, and needs none
        with pytest.raises(PromptTooLongError, match="65 tokens"):
            await engine.embed(prompt_of(65))
        with pytest.raises(RequestError, match="empty"):
            await engine.embed([])
        for wrong in (0, engine.embedding_size + 1):
            with pytest.raises(ParameterError, match=f"dimensions: expected 1 to .*, got {wrong}"):
                await engine.embed([2], dimensions=wrong)
    says(copied, "pooling_mode_lasttoken", "Dense")
    async with open_engine(copied) as engine:
        with pytest.raises(RequestError, match=r"modules\.json: Dense is not supported"):
            await engine.embed([2])
        assert (await answer(engine)).ids
