"""What is compiled beside a load is what steps ask for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from unicorn_async.config import SamplingParams, WeightScheme
from unicorn_async.gpu.kernel import KernelLibrary
from unicorn_async.ops.attention_plan import MAX_ROTATING_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.gpu.kernel import Kernel, KernelRequest

    from .conftest import OpenEngine


@pytest.mark.parametrize("weights", [WeightScheme.AUTO, WeightScheme.INT8])
async def test_steps_of_few_and_of_many_sequences_ask_for_no_kernel_of_attention_that_was_not_prepared(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, weights: WeightScheme
) -> None:
    prepared, asked = set(), set()
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
    async with open_engine("qwen3", "bfloat16", weights=weights) as engine:

        async def answer(length: int) -> None:
            async for _ in engine.stream(range(1, 1 + length), SamplingParams(max_tokens=3, ignore_eos=True)):
                pass

        await answer(1)
        for count in range(2, MAX_ROTATING_TOKENS + 3):
            await asyncio.gather(*(answer(3 * length) for length in range(1, 1 + count)))
    attention = {key for key in asked if key[0].startswith(("attention", "rope_cache"))}
    assert sum(name == "rope_cache_f16" for name, *_ in attention) == 1
    decodes = [dict(constants) for name, *constants in attention if name.startswith("attention_decode")]
    assert {constants.get("ROTATES", False) for constants in decodes} == {True, False}
    assert attention <= prepared
