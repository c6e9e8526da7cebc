"""The attention on a second logical device of the same GPU, against that of the device itself."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.answers import PROMPT, answer, prompt_of
from tests.engine.leftovers import no_leftovers
from tests.engine.load_faults import FailingDisk
from tests.engine.test_demo_model import MODEL
from tests.engine.test_golden import INT8_CACHE_TOLERANCE, TOLERANCE, check_mixed
from tests.engine.test_requests import KINDS, LLAMA_BLOCK_BYTES, check_all_freed
from tests.golden.checkpoints import golden
from tests.golden.demo import demo_answers
from unicorn_async.config import AttentionKind, AttentionTarget, ExchangeKind, KVDType, SplitMode
from unicorn_async.errors import CheckpointError, ConfigError, DeviceLostError, OutOfMemoryError, UnicornError
from unicorn_async.gpu.budget import HeapKind
from unicorn_async.gpu.queue import Queue
from unicorn_async.grammar import Grammar
from unicorn_async.hybrid.vulkan_attention import VulkanFarAttention, VulkanPass
from unicorn_async.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.engine.conftest import OpenEngine
    from unicorn_async.engine.engine import Engine
    from unicorn_async.gpu.device_info import DeviceInfo

ELSEWHERE = [SplitMode.ALWAYS, SplitMode.NEVER]
EITHER_SPLIT = [
    SplitMode.ALWAYS,
    pytest.param(SplitMode.NEVER, marks=pytest.mark.whole("the demo's length of answers, and closing, without halves")),
]
OTHERS = pytest.mark.whole("attention elsewhere beside biases, norms of heads, and windows in all layers")
FAMILIES = ["gemma3", "llama", *(pytest.param(name, marks=OTHERS) for name in ("qwen2", "qwen3", "mistral"))]
COPIED = pytest.mark.whole("copies between two Vulkan devices; those to an NPU are seen always")
BETWEEN = pytest.mark.whole("a failure amid a step, and early and late in a request")


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with no_leftovers(monkeypatch):
        yield


@pytest.fixture
def there(device_info: DeviceInfo) -> AttentionTarget:
    return AttentionTarget(AttentionKind.VULKAN, str(device_info.index))


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


async def test_a_trace_that_can_t_be_written_any_more_is_a_warning(
    open_engine: OpenEngine, there: AttentionTarget, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "gone" / "steps.json"
    path.parent.mkdir()
    async with open_engine(attention=there, step_trace=path) as engine:
        await answer(engine, PROMPT, max_tokens=2)
        shutil.rmtree(path.parent)
    assert f"step trace {path}: No such file or directory" in caplog.text


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


@pytest.mark.parametrize("number", [1, 17, *(pytest.param(n, marks=BETWEEN) for n in (2, 5, 40))])
async def test_a_far_device_that_fails_ends_every_request_with_its_error(
    number: int, open_engine: OpenEngine, there: AttentionTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, submit = 0, Queue.submit
    far_queue: list[Queue] = []
    init = VulkanFarAttention.__init__

    def noted(attention: VulkanFarAttention, *args: Any) -> None:
        init(attention, *args)
        far_queue.append(attention.far.compute)

    def failing(queue: Queue, *args: Any, **kwargs: Any) -> int:
        nonlocal calls
        if far_queue and queue is far_queue[-1]:
            calls += 1
            if calls >= number:
                raise DeviceLostError("the far device fell off the bus")
        return submit(queue, *args, **kwargs)

    with monkeypatch.context() as broken:
        broken.setattr(VulkanFarAttention, "__init__", noted)
        broken.setattr(Queue, "submit", failing)
        async with open_engine(attention=there, attention_split=SplitMode.ALWAYS) as engine:
            asking = [asyncio.create_task(answer(engine, prompt_of(40, seed), max_tokens=40)) for seed in range(3)]
            for task in asking:
                with pytest.raises(DeviceLostError, match="fell off the bus"):
                    await asyncio.wait_for(task, 60)
            with pytest.raises(DeviceLostError, match="fell off the bus"):
                await answer(engine)
    async with open_engine(attention=there) as engine:
        assert len((await answer(engine, max_tokens=4)).ids) == 4


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


async def test_a_disk_that_fails_ends_steps_that_wait_for_layers(
    open_engine: OpenEngine, there: AttentionTarget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = shutil.copytree(MODEL, tmp_path / "model")
    FailingDisk(monkeypatch, model, after_bytes=200_000)
    async with open_engine(model, attention=there) as engine:
        waiting = asyncio.create_task(answer(engine))
        with pytest.raises(CheckpointError, match="Input/output error"):
            await engine.loaded()
        with pytest.raises(CheckpointError, match="Input/output error"):
            await waiting


async def test_a_device_that_is_not_there_is_an_error(open_engine: OpenEngine) -> None:
    with pytest.raises(ConfigError, match="device 99: there is no device of this index; there are:"):
        async with open_engine(attention=AttentionTarget(AttentionKind.VULKAN, "99")):
            pass


async def test_a_cache_that_does_not_fit_is_an_error(open_engine: OpenEngine, there: AttentionTarget) -> None:
    with pytest.raises(UnicornError, match="KV cache: a context of 512 tokens needs"):
        async with open_engine(attention=there, kv_cache_bytes=1000):
            pass


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
