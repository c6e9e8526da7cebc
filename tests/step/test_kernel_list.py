"""What is compiled beside a load is what steps ask for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import unicorn_async
from tests.checkpoint.gguf.demo_file import mixed_demo, write_demo_gguf
from tests.engine.predicting_model import write_hybrid
from unicorn_async.config import WeightScheme
from unicorn_async.gpu.kernel import KernelLibrary
from unicorn_async.ops.attention_plan import MAX_ROTATING_TOKENS
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.engine.conftest import OpenEngine
    from unicorn_async.gpu.kernel import Kernel, KernelRequest


DEMO = Path(unicorn_async.__file__).parent / "demo" / "model"  # its output head is cut unlike its layers
PLAIN = pytest.mark.whole("the same of models whose layers are alike or have windows, and of short convolutions")


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        pytest.param("qwen3", WeightScheme.AUTO, marks=PLAIN),
        pytest.param("qwen3", WeightScheme.INT8, marks=PLAIN),
        pytest.param(DEMO, WeightScheme.AUTO, marks=PLAIN),
        ("mixed", WeightScheme.AUTO),
        pytest.param("olmo3", WeightScheme.AUTO, marks=PLAIN),
        pytest.param("lfm2", WeightScheme.AUTO, marks=PLAIN),
        ("qwen3_5", WeightScheme.INT8),  # with a layer that predicts
        pytest.param("cohere2", WeightScheme.INT8, marks=PLAIN),
    ],
    ids=["qwen3", "qwen3-int8", "demo", "mixed", "olmo3", "lfm2", "qwen3_5-int8", "cohere2-int8"],
)
async def test_steps_of_few_and_of_many_sequences_with_penalties_or_not_ask_for_no_kernel_that_was_not_prepared(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, model: str | Path, weights: WeightScheme, tmp_path: Path
) -> None:
    prepared: set[tuple[Any, ...]] = set()
    asked: set[tuple[Any, ...]] = set()
    prepare, get = KernelLibrary.prepare, KernelLibrary.get

    def note_prepared(self: KernelLibrary, requests: Iterable[KernelRequest]) -> list[Kernel]:
        wanted = list(requests)
        prepared.update((item.name, *sorted(item.constants.items())) for item in wanted)
        return prepare(self, wanted)

    def note_asked(self: KernelLibrary, name: str, **options: Any) -> Kernel:
        asked.add((name, *sorted((options.get("constants") or {}).items())))
        return get(self, name, **options)

    monkeypatch.setattr(KernelLibrary, "prepare", note_prepared)
    monkeypatch.setattr(KernelLibrary, "get", note_asked)
    if model == "mixed":  # of which no layer has the types of all others
        model = write_demo_gguf(tmp_path / "mixed.gguf", "Q4_K", mixed_demo())
    directory, options = model, {}
    if model == "qwen3_5":
        directory, options = write_hybrid(tmp_path / "model", is_right=False), {"speculation": "auto"}
    async with open_engine(directory, weights=weights, **options) as engine:

        async def answer(length: int, **sampling: Any) -> None:
            params = SamplingParams(max_tokens=3, ignore_eos=True, **sampling)
            async for _ in engine.stream(range(1, 1 + length), params):
                pass

        await answer(1)
        for count in range(2, MAX_ROTATING_TOKENS + 3):
            await asyncio.gather(*(answer(3 * length) for length in range(1, 1 + count)))
        await asyncio.gather(*(answer(length, temperature=0.7, presence_penalty=0.5) for length in (3, 9)))
        await answer(5, logit_bias={3: 1.0})
        await engine.logits(range(1, 41))
        await engine.loaded()
    names = {name for name, *_ in asked}
    assert ("predictor_input" in names) == (model == "qwen3_5")
    assert {"sample_pick", "sample_finish", "sample_reset", "sample_count", "sample_bias"} <= names
    attention = {key for key in asked if key[0].startswith(("attention", "rope_cache"))}
    kinds = 2 if model == "olmo3" else 1  # of layers, whose rotations differ in more than frequencies
    assert sum(name == "rope_cache_f16" for name, *_ in attention) == kinds
    decodes = [dict(constants) for name, *constants in attention if name.startswith("attention_decode")]
    rotates = {constants.get("ROTATES", False) for constants in decodes}
    assert rotates == ({False} if model == "qwen3_5" else {True, False})  # gates lie between the heads to rotate
    assert {key for key in asked if key[0] != "matrix_fragments"} <= prepared  # that one tells what the device can do
