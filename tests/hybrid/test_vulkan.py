"""The attention on a second logical device of the same GPU, against that of the device itself."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.answers import PROMPT, answer, prompt_of
from tests.engine.test_demo_model import MODEL
from tests.engine.test_golden import INT8_CACHE_TOLERANCE, TOLERANCE, check_mixed
from tests.engine.test_requests import KINDS, LLAMA_BLOCK_BYTES, check_all_freed
from tests.golden.checkpoints import golden
from tests.golden.demo import demo_answers
from unicorn_async.config import AttentionKind, AttentionTarget, ExchangeKind, KVDType, SplitMode
from unicorn_async.errors import OutOfMemoryError
from unicorn_async.gpu.budget import HeapKind
from unicorn_async.gpu.queue import Queue
from unicorn_async.grammar import Grammar

if TYPE_CHECKING:
    from tests.engine.conftest import OpenEngine
    from unicorn_async.engine.engine import Engine

pytestmark = pytest.mark.usefixtures("nothing_left")
ELSEWHERE = [SplitMode.ALWAYS, SplitMode.NEVER]
EITHER_SPLIT = [
    SplitMode.ALWAYS,
    pytest.param(SplitMode.NEVER, marks=pytest.mark.whole("the demo's length of answers, and closing, without halves")),
]
OTHERS = pytest.mark.whole("attention elsewhere beside biases, norms of heads, and windows in all layers")
FAMILIES = ["gemma3", *(pytest.param(name, marks=OTHERS) for name in ("llama", "qwen2", "qwen3", "mistral"))]
COPIED = pytest.mark.whole("copies between two Vulkan devices; those to an NPU are seen always")


async def together(engine: Engine) -> list[list[int]]:
    """Prompts that are chunked and join others which decode; greedy, drawn and with counts of tokens."""
    prompts = [prompt_of(length) for length in (3, 40, 150, 7)]
    jobs = (answer(engine, p, max_tokens=12, **kind) for p, kind in zip(prompts, KINDS, strict=True))
    return [found.ids for found in await asyncio.gather(*jobs)]


@pytest.mark.parametrize("name", FAMILIES)
async def test_tokens_are_those_of_attention_on_the_gpu(
    name: str, open_engine: OpenEngine, there: AttentionTarget
) -> None:
    async with open_engine(name) as engine:
        expected = await together(engine)
        assert engine.attention.kind is AttentionKind.GPU
        assert engine.attention.kv_cache_bytes == engine.kv_cache_bytes > 0
        assert engine.stats().attention is None
        assert engine._scheduler.in_order
    for split in ELSEWHERE:
        async with open_engine(name, attention=there, attention_split=split) as engine:
            assert not engine._scheduler.in_order  # halves of two steps may be under way on one device
            assert await together(engine) == expected
            await check_all_freed(engine)
            stats = engine.stats().attention
            assert stats is not None
            assert (stats.split_steps > 0) == (split is SplitMode.ALWAYS)
            assert engine.attention.kind is AttentionKind.VULKAN
            assert "second logical device" in engine.attention.device
            assert all(heap.plan_agrees for heap in engine.memory.heaps)
            assert {"attention_decode_f16_floats", "kv_append"} <= set(engine.kernels)


@pytest.mark.combinations("either number of frames with either split")
@pytest.mark.parametrize("num_frames", [1, 3])
@pytest.mark.parametrize("split", ELSEWHERE)
async def test_steps_in_flight_beside_each_other_give_the_same_tokens(
    split: SplitMode, num_frames: int, open_engine: OpenEngine, there: AttentionTarget
) -> None:
    small: dict[str, Any] = {"max_num_batched_tokens": 40, "max_num_seqs": 3, "num_frames": num_frames}
    async with open_engine(**small) as engine:
        expected = await together(engine)
    async with open_engine(attention=there, attention_split=split, **small) as engine:
        assert await together(engine) == expected
        await check_all_freed(engine)


async def test_answers_follow_their_grammars_there_too(open_engine: OpenEngine, there: AttentionTarget) -> None:
    grammar = Grammar.regex(r"[a-z]{5} [0-9]{5}(, [a-z]{2}){4}")

    async def texts(engine: Engine) -> list[str]:
        asked = (
            answer(
                engine,
                (5, 9 + n),
                grammar=grammar if n % 2 else None,
                temperature=1.0,
                seed=n,
                ignore_eos=False,
                max_tokens=40,
            )
            for n in range(6)
        )
        return [found.text for found in await asyncio.gather(*asked)]

    async with open_engine(MODEL) as engine:
        expected = await texts(engine)
    async with open_engine(MODEL, attention=there, attention_split=SplitMode.ALWAYS) as engine:
        found = await texts(engine)
        await check_all_freed(engine)
    assert found[1::2] == expected[1::2]
    assert all(re.fullmatch(grammar.source, text) for text in found[1::2])


@pytest.mark.whole("that a trained model's answers are the same; small random ones are compared always")
@pytest.mark.parametrize("split", EITHER_SPLIT)
async def test_the_demo_model_continues_as_transformers_does(
    split: SplitMode, open_engine: OpenEngine, there: AttentionTarget
) -> None:
    expected = demo_answers()
    async with open_engine(MODEL, attention=there, attention_split=split) as engine:
        found = await asyncio.gather(
            *(answer(engine, one.prompt, max_tokens=len(one.continuation)) for one in expected)
        )
        for one, continued in zip(expected, found, strict=True):
            assert tuple(continued.ids) == one.continuation


@pytest.mark.combinations("either type of a cache in either model")
@pytest.mark.parametrize("kv_dtype", [KVDType.F16, KVDType.F32])
@pytest.mark.parametrize("name", ["gemma3", "llama"])
async def test_logits_agree_with_the_reference(
    name: str, kv_dtype: KVDType, open_engine: OpenEngine, there: AttentionTarget
) -> None:
    reference = golden(name)
    options: dict[str, Any] = {"attention": there, "attention_split": SplitMode.ALWAYS, "kv_dtype": kv_dtype}
    async with open_engine(name, "float16", **options) as engine:
        for index, prompt in enumerate(reference.prompts):  # while the model loads
            assert reference.error(index, await engine.logits(prompt)) <= TOLERANCE["float16"]
        await check_mixed(engine, reference, TOLERANCE["float16"])


async def test_keys_and_values_become_int8_where_the_cache_is(open_engine: OpenEngine, there: AttentionTarget) -> None:
    reference = golden("mistral")
    options: dict[str, Any] = {"attention": there, "attention_split": SplitMode.ALWAYS, "kv_dtype": KVDType.INT8}
    async with open_engine("mistral", "float16", **options) as engine:
        assert engine.attention.kv_dtype == "int8"
        await check_mixed(engine, reference, INT8_CACHE_TOLERANCE)


async def test_requests_that_lose_their_place_give_the_same_tokens(
    open_engine: OpenEngine, there: AttentionTarget
) -> None:
    prompts = [prompt_of(30, seed) for seed in range(4)]
    options = {"attention": there, "attention_split": SplitMode.ALWAYS, "max_context": 128}
    async with open_engine("llama", **options, kv_cache_bytes=13 * LLAMA_BLOCK_BYTES) as engine:
        assert engine.attention.to_json()["kv_cache_bytes"] == 13 * LLAMA_BLOCK_BYTES
        alone = [(await answer(engine, prompt, max_tokens=64)).ids for prompt in prompts]
        assert engine.stats().preemptions == 0
        found = await asyncio.gather(*(answer(engine, prompt, max_tokens=64) for prompt in prompts))
        assert engine.stats().preemptions > 0
        assert [one.ids for one in found] == alone
        await check_all_freed(engine)


@pytest.mark.parametrize("kind", [ExchangeKind.SHARED, pytest.param(ExchangeKind.COPIED, marks=COPIED)])
async def test_both_ways_to_hand_over_give_the_same_tokens(
    kind: ExchangeKind, open_engine: OpenEngine, there: AttentionTarget
) -> None:
    async with open_engine() as engine:
        expected = await together(engine)
        shares = engine.device.external_memory_host
    if kind is ExchangeKind.SHARED and not shares:
        pytest.skip("the device takes no memory of the host")
    options = {"attention": there, "attention_split": SplitMode.ALWAYS, "attention_exchange": kind}
    async with open_engine(**options) as engine:
        assert await together(engine) == expected
        assert engine.attention.exchange == kind.value


async def test_the_faster_way_is_found_and_told(open_engine: OpenEngine, there: AttentionTarget) -> None:
    async with open_engine(attention=there) as engine:
        await engine.loaded()
        await asyncio.gather(*(answer(engine, prompt_of(8, seed), max_tokens=32) for seed in range(4)))
        stats = engine.stats().attention
        assert stats is not None
        assert stats.split_steps >= 3
        assert stats.whole_steps >= 3
        known = [kind for kind in stats.step_times if kind["whole_ms"] and kind["split_ms"]]
        assert known
        for kind in known:
            split_ms, whole_ms = float(str(kind["split_ms"])), float(str(kind["whole_ms"]))
            assert kind["way"] != ("whole" if split_ms < whole_ms else "split") or split_ms == whole_ms
        assert any(kind["way"] for kind in known)
        assert stats.near_s > 0
        assert stats.far_s > 0


@pytest.mark.whole(
    "moments of closing with two devices; with one all are seen always, and so are failures of the other"
)
@pytest.mark.parametrize("split", EITHER_SPLIT)
async def test_an_engine_can_be_closed_at_any_moment(
    split: SplitMode, open_engine: OpenEngine, there: AttentionTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every so-manieth submission to either device, whoever waits then is cancelled."""
    submit = Queue.submit
    count, at, cancel = 0, 0, lambda: None

    def counted(queue: Queue, *args: Any, **kwargs: Any) -> int:
        nonlocal count
        count += 1
        if count == at:
            cancel()
        return submit(queue, *args, **kwargs)

    async def run() -> list[list[int]]:
        async with open_engine(attention=there, attention_split=split) as engine:
            jobs = (answer(engine, prompt_of(40, seed), max_tokens=4) for seed in range(2))
            return [found.ids for found in await asyncio.gather(*jobs)]

    monkeypatch.setattr(Queue, "submit", counted)
    expected = await run()
    total, num_cancelled = count, 0
    loop = asyncio.get_running_loop()
    for number in range(1, total, max(1, total // 7)):
        task = asyncio.create_task(run())
        count, at, cancel = 0, number, lambda task=task: loop.call_soon_threadsafe(task.cancel)  # type: ignore[misc]
        try:
            assert await task == expected
        except asyncio.CancelledError:
            num_cancelled += 1
    assert num_cancelled > 3
    at = 0
    assert await run() == expected


async def test_the_context_that_is_asked_for_is_there(open_engine: OpenEngine, there: AttentionTarget) -> None:
    async with open_engine(attention=there, max_context=256) as engine:
        assert engine.max_context == 256
        assert engine.kv_cache_bytes > 0
        assert len((await answer(engine, PROMPT, max_tokens=3)).ids) == 3


async def test_limits_of_memory_are_the_cache_s_too(open_engine: OpenEngine, there: AttentionTarget) -> None:
    """Two logical devices have one memory."""
    async with open_engine(attention=there, max_context=None) as engine:
        heaps, free = engine.memory.heaps, engine.kv_cache_bytes
        planned = sum(heap.planned for heap in heaps)
        staged = engine._model.memory_plan.staged_bytes
    limit = planned - free // 2
    async with open_engine(attention=there, max_context=None, vram_bytes=limit) as engine:
        assert engine.kv_cache_bytes < free
        assert sum(heap.planned for heap in engine.memory.heaps if heap.heap is HeapKind.VRAM) <= limit
        assert len((await answer(engine, max_tokens=3)).ids) == 3
    with pytest.raises(OutOfMemoryError, match=r"KV cache: a context of|are left beside the model, attention on"):
        async with open_engine(attention=there, vram_bytes=planned - free + staged + (1 << 16)):
            pass
