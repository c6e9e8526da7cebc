"""The attention on an NPU, which is a double here that runs the NPU's own kernels, built by g++."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING
from unittest.mock import AsyncMock

import numpy as np
import pytest

from tests.engine.answers import answer, logits_behind, prompt_of
from tests.engine.leftovers import no_leftovers
from tests.engine.test_demo_model import MODEL
from tests.engine.test_golden import check_mixed
from tests.engine.test_requests import check_all_freed
from tests.golden.checkpoints import golden
from tests.golden.demo import demo_answers
from tests.turns import Turns
from unicorn_async.config import AttentionKind, AttentionTarget, ExchangeKind, SplitMode
from unicorn_async.npu.attention import NpuOptions
from unicorn_async.npu.geometry import CHIPS, HEAD_DIMS
from unicorn_async.sampling_params import SamplingParams

from .wide_model import TINY, WIDE_CASES, wide_case, write_wide_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engine.conftest import OpenEngine, WriteModel

    from .npu_machine import NpuMachine

NPU = AttentionTarget(AttentionKind.NPU)
SPLITS = [SplitMode.ALWAYS, SplitMode.NEVER]
# Of those with a head_dim that the NPU's kernels have; mistral has windows, glm4_moe experts.
FAMILIES = ["mistral", "qwen2", "qwen3", "glm4_moe"]
# In deviations of the logits. The NPU takes q, k and v in bf16, whose rounding is 8 times as coarse as f16's. Every
# mistake that a reference knows of is 14 times as large, or more.
ROUNDING = 5e-2
# Lengths and seeds of prompts, chosen so that each of 16 answered tokens leads the second best by more than rounding
# makes of it, where random weights often give near-ties, and that no answer repeats one token. The lead is in
# deviations of the logits.
LEAD = 0.02
PROMPTS = {
    "mistral": [(7, 1), (7, 21), (70, 11), (150, 1)],
    "qwen2": [(7, 5), (7, 22), (150, 17), (150, 19)],
    "qwen3": [(7, 12), (70, 6), (70, 13), (150, 15)],
    "wide": [(7, 22), (70, 9), (70, 21), (150, 8)],  # a Llama
    "wide_gemma3": [(7, 7), (70, 1), (70, 16), (150, 16)],
}
QWEN3_BLOCK_BYTES = 2 * 3 * 2 * 64 * 64 * 2  # k and v, layers, kv heads, tokens, head_dim, bf16


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch, machine: NpuMachine) -> Iterator[None]:
    with no_leftovers(monkeypatch):
        yield


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path, model_directory: WriteModel) -> Path:
    """A small random model."""
    name = request.param
    return write_wide_model(tmp_path / name, WIDE_CASES[name]) if name in WIDE_CASES else model_directory(name)


@pytest.mark.whole("that a trained model's answers are the same; those of small random ones are compared always")
@pytest.mark.parametrize("split", SPLITS)
async def test_the_demo_model_gives_the_tokens_of_attention_on_the_gpu(
    split: SplitMode, open_engine: OpenEngine
) -> None:
    """They are also those of transformers, in test_demo_model."""
    conversations = demo_answers()[:6]
    expected = [one.continuation[:20] for one in conversations]
    async with open_engine(MODEL, attention=NPU, attention_split=split) as engine:
        found = await asyncio.gather(*(answer(engine, one.prompt, max_tokens=20) for one in conversations))
        assert [tuple(one.ids) for one in found] == expected
        await check_all_freed(engine)
        stats = engine.stats().attention
        assert stats is not None
        assert (stats.split_steps > 0) == (split is SplitMode.ALWAYS)
        assert stats.far_s > 0
        assert engine.attention.kind is AttentionKind.NPU
        assert engine.attention.device == "AMD NPU npu1 at 0000:c4:00.1"
        assert engine.attention.exchange == "shared"
        assert engine.attention.reason.startswith("both devices have the same pages")
        assert engine.config.block_size == 64
        assert {"npu_queries", "npu_new_tokens", "npu_results"} <= set(engine.kernels)
        assert not any(name.startswith("attention_") for name in engine.kernels)
        assert all(heap.plan_agrees for heap in engine.memory.heaps)
    async with open_engine(MODEL) as engine:
        found = await asyncio.gather(*(answer(engine, one.prompt, max_tokens=20) for one in conversations))
        assert [tuple(one.ids) for one in found] == expected


@pytest.mark.combinations("a family whose whole steps, or halves, alone go wrong")
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", FAMILIES)
async def test_logits_agree_with_the_reference(name: str, split: SplitMode, open_engine: OpenEngine) -> None:
    """While the model loads, then chunked and mixed in the same steps."""
    reference = golden(name)
    async with open_engine(name, attention=NPU, attention_split=split) as engine:
        assert reference.error(1, await engine.logits(reference.prompts[1])) <= ROUNDING
        await check_mixed(engine, reference, ROUNDING)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(name, marks=() if name == "wide" else pytest.mark.whole("tokens of this family alone"))
        for name in PROMPTS
    ],
    indirect=True,
)
async def test_small_random_models_give_the_greedy_tokens_of_attention_on_the_gpu(
    request: pytest.FixtureRequest, model: Path, open_engine: OpenEngine
) -> None:
    prompts = [prompt_of(length, seed) for length, seed in PROMPTS[request.node.callspec.params["model"]]]
    async with open_engine(model) as engine:
        expected = [(await answer(engine, prompt)).ids for prompt in prompts]
        for prompt, ids in zip(prompts, expected, strict=True):
            logits = await logits_behind(engine, prompt, ids)
            second, best = np.sort(logits, axis=1)[:, -2:].T
            assert (best - second).min() >= LEAD * logits.std(), "choose another prompt: rounding would decide"
    for split in SPLITS:
        async with open_engine(model, attention=NPU, attention_split=split) as engine:
            found = await asyncio.gather(*(answer(engine, prompt) for prompt in prompts))
        assert [one.ids for one in found] == expected


@pytest.mark.parametrize(("items", "block_size"), [(256, 256), (3, 64)])
async def test_a_head_dim_of_128_gives_the_logits_of_attention_on_the_gpu(
    items: int, block_size: int, open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a layer takes many runs, and with large blocks."""
    monkeypatch.setattr("unicorn_async.hybrid.npu_opening.npu_options", lambda *_: NpuOptions(items_per_run=items))
    model, prompt = write_wide_model(tmp_path / "wide"), prompt_of(200)
    async with open_engine(model) as engine:
        expected = await engine.logits(prompt)
    options = {"attention": NPU, "attention_split": SplitMode.ALWAYS, "block_size": block_size}
    async with open_engine(model, **options) as engine:
        assert engine.config.block_size == block_size
        found = await engine.logits(prompt)
    assert np.abs(found - expected).max() <= ROUNDING * expected.std()


@pytest.mark.combinations("a head's size that goes wrong on one chip alone")
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("machine", CHIPS, indirect=True, ids=[chip.name for chip in CHIPS])
async def test_every_chip_and_head_dim_gives_the_logits_of_attention_on_the_gpu(
    machine: NpuMachine, head_dim: int, open_engine: OpenEngine, tmp_path: Path
) -> None:
    model, prompt = write_wide_model(tmp_path / "wide", wide_case(head_dim)), prompt_of(100)
    async with open_engine(model) as engine:
        expected = await engine.logits(prompt)
    for exchange in (ExchangeKind.SHARED, ExchangeKind.COPIED):
        async with open_engine(model, attention=NPU, attention_exchange=exchange) as engine:
            assert engine.attention.device == f"AMD NPU {machine.machine.chip.name} at 0000:c4:00.1"
            found = await engine.logits(prompt)
        assert np.abs(found - expected).max() <= ROUNDING * expected.std()


async def test_copies_in_threads_give_the_same_tokens(open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = []
    for threshold in (1 << 20, 0):
        monkeypatch.setattr("unicorn_async.hybrid.npu_exchange.THREAD_BYTES", threshold)
        monkeypatch.setattr("unicorn_async.npu.flight.THREAD_BYTES", threshold)
        options = {"attention_split": SplitMode.ALWAYS, "attention_exchange": ExchangeKind.COPIED}
        async with open_engine("qwen3", attention=NPU, **options) as engine:
            jobs = (answer(engine, prompt_of(60, seed), max_tokens=8) for seed in range(3))
            tokens.append([one.ids for one in await asyncio.gather(*jobs)])
    assert tokens[0] == tokens[1]


@pytest.mark.whole("blocks of an NPU's cache; that of another Vulkan device is seen in the short run")
async def test_requests_that_lose_their_place_give_the_same_tokens(open_engine: OpenEngine) -> None:
    prompts = [prompt_of(60, seed) for seed in range(4)]
    options = {"attention": NPU, "attention_split": SplitMode.ALWAYS, "max_context": 256}
    async with open_engine("qwen3", **options, kv_cache_bytes=8 * QWEN3_BLOCK_BYTES) as engine:
        assert engine.kv_cache_bytes == 8 * QWEN3_BLOCK_BYTES == engine.attention.to_json()["kv_cache_bytes"]
        alone = [(await answer(engine, prompt, max_tokens=140)).ids for prompt in prompts]
        assert engine.stats().preemptions == 0
        found = await asyncio.gather(*(answer(engine, prompt, max_tokens=140) for prompt in prompts))
        assert engine.stats().preemptions > 0
        assert [one.ids for one in found] == alone
        await check_all_freed(engine)


async def test_the_gpu_works_while_the_npu_attends(open_engine: OpenEngine, tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    options = {"attention": NPU, "attention_split": SplitMode.ALWAYS, "step_trace": path}
    async with open_engine("qwen3", **options) as engine:
        await engine.loaded()
        num_layers = engine.model_spec.num_layers
        await asyncio.gather(*(answer(engine, prompt_of(60, seed), max_tokens=4) for seed in range(4)))
        stats = engine.stats().attention
    assert stats is not None
    assert 0 < stats.both_s <= min(stats.near_s, stats.far_s)
    events = json.loads(path.read_text())["traceEvents"]
    assert events[1]["args"]["name"] == "attention: AMD NPU npu1 at 0000:c4:00.1"
    spans = [event["args"] for event in events if event["ph"] == "X" and event["cat"] == "attention"]
    halves = {(span["step"], span["half"]) for span in spans}
    assert len(spans) == num_layers * len(halves)


@pytest.mark.whole(
    "a turn at which an engine with an NPU leaves something behind; with a Vulkan device it is closed always"
)
@pytest.mark.parametrize(
    ("first", "exchange", "split"),
    [
        (0, ExchangeKind.SHARED, SplitMode.ALWAYS),
        (1, ExchangeKind.COPIED, SplitMode.ALWAYS),
        (3, ExchangeKind.SHARED, SplitMode.NEVER),
        (4, ExchangeKind.COPIED, SplitMode.NEVER),
    ],
)
async def test_an_engine_can_be_cancelled_at_every_twelfth_turn(
    first: int,
    exchange: ExchangeKind,
    split: SplitMode,
    open_engine: OpenEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a turn of the event loop, from the start to the end, and once more some turns later.

    Each case has another twelfth of the turns; where the cases do different things, each of them is tried at a twelfth
    of its turns. The known questions have such a test of their own, at every turn.
    """
    monkeypatch.setattr("unicorn_async.npu.opening.self_check", AsyncMock())
    model = write_wide_model(tmp_path / "tiny", TINY)

    async def run() -> list[int]:
        options = {"attention_split": split, "attention_exchange": exchange, "max_context": 64}
        async with open_engine(model, attention=NPU, **options) as engine:
            return (await answer(engine, prompt_of(20), max_tokens=1)).ids

    expected = await run()
    assert await Turns(monkeypatch).cancel_at_each(run, expected, 12, first) > 8
    assert await run() == expected


@pytest.mark.whole(
    "a turn of the loop at which a cancelled request leaves something behind; one while the NPU works is seen always"
)
@pytest.mark.parametrize("exchange", [ExchangeKind.SHARED, ExchangeKind.COPIED])
async def test_a_request_can_be_cancelled_at_any_turn(
    exchange: ExchangeKind, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the event loop goes on: in a prompt that is cut in two, and in steps that decode."""
    options = {"attention_split": SplitMode.ALWAYS, "attention_exchange": exchange}
    async with open_engine("qwen2", attention=NPU, **options) as engine:
        await engine.loaded()

        async def run() -> list[int]:
            return (await answer(engine, prompt_of(40), max_tokens=3)).ids

        expected = await run()
        assert await Turns(monkeypatch).cancel_at_each(run, expected, 1) > 100
        assert await run() == expected
        await check_all_freed(engine)


async def test_a_request_may_be_cancelled_while_the_npu_works(open_engine: OpenEngine) -> None:
    async with open_engine("qwen2", attention=NPU, attention_split=SplitMode.ALWAYS) as engine:
        alone = await answer(engine, max_tokens=16)
        asking = [asyncio.create_task(answer(engine, prompt_of(100, seed), max_tokens=200)) for seed in range(4)]
        other = asyncio.create_task(answer(engine, max_tokens=16))
        began = engine.stream(prompt_of(100, 9), SamplingParams(max_tokens=200))
        await anext(began)  # all that asked before are running by then
        await began.aclose()
        for task in asking:
            task.cancel()
        assert (await other).ids == alone.ids
        await check_all_freed(engine)
