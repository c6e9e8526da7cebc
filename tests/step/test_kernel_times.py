from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from unicorn_async.cli.bench_kernels import kernel_lines, kernels_json
from unicorn_async.cli.bench_limits import Limits
from unicorn_async.config import WeightScheme
from unicorn_async.gpu.kernel import KernelLibrary
from unicorn_async.gpu.manifest import Manifest
from unicorn_async.gpu.timed_recorder import DispatchTime
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.ops.attention_plan import MAX_ROTATING_TOKENS
from unicorn_async.ops.page_touch import MAX_TOUCH_TOKENS, touch_pages
from unicorn_async.ops.rows import RowForm
from unicorn_async.resources import resource_dir
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.step.buckets import bucket_for, bucket_sizes
from unicorn_async.step.kernel_times import KernelTimes

from .entry_kernel import entry_kernel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.engine.conftest import OpenEngine
    from unicorn_async.engine.engine import Engine
    from unicorn_async.gpu.kernel import Kernel, KernelRequest


async def test_a_timed_engine_tells_where_the_time_of_its_steps_went(open_engine: OpenEngine) -> None:
    async with open_engine("llama", "bfloat16", time_kernels=True) as engine:
        await engine.loaded()
        async for _ in engine.stream([1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True)):
            pass
        times = engine.kernel_times()
        layers = engine.model_spec.num_layers
        decode = [time for time in times if time.tokens == 1]
        attention = next(time for time in decode if time.kernel.startswith("attention_decode"))
        assert attention.dispatches == attention.steps * layers
        down = next(time for time in decode if time.detail and time.kernel.startswith("linear_"))
        rows, columns = map(int, down.detail.split("x"))
        assert (down.nbytes, down.flops) == (2 * rows * columns, 2 * rows * columns)
        assert all(time.ns > 0 for time in times)
        copy = down.nbytes / down.us * 2e6  # bytes a second: twice what the kernel reaches
        limits = Limits(copy, copy, copy, fma_flops_per_s=1e15, matrix_flops_per_s=0.0, shared_flops_per_s=0.0)
        text = "\n".join(kernel_lines(engine, limits))
        assert attention.kernel in text and down.detail in text
        assert any(down.detail in line and " 50%" in line for line in text.splitlines())
        assert kernels_json(engine, limits)["software"] == engine.device.is_software


async def test_steps_of_a_warm_up_are_left_out(open_engine: OpenEngine) -> None:
    async def decode(engine: Engine) -> dict[int, int]:
        async for _ in engine.stream([1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True)):
            pass
        return {time.tokens: time.steps for time in engine.kernel_times()}

    async with open_engine("llama", "bfloat16", time_kernels=True) as engine:
        await engine.loaded()
        engine.count_kernel_times(wanted=False)
        assert await decode(engine) == {}
        engine.count_kernel_times(wanted=True)
        assert (await decode(engine))[1] >= 3


def test_every_product_with_quantised_weights_tells_how_many_bytes_it_reads() -> None:
    entries = Manifest.read(resource_dir("shaders")).entries
    products = [entry for entry in entries.values() if entry.name.startswith("linear_quant_")]
    times = KernelTimes()
    for entry in products:
        fields = dict.fromkeys(entry.push.names, 0) | {"n": 64, "blocks": 64, "tokens": 1}
        kernel = entry_kernel(entry)
        times.note_step(1, [DispatchTime(kernel, kernel.pack(**fields), 1000)])
    sizes = {time.kernel: time.nbytes for time in times.table()}
    assert len(sizes) == len(products) > 0
    assert [name for name, nbytes in sizes.items() if nbytes == 0] == []


@pytest.mark.parametrize("num_streams", [1, MAX_ROTATING_TOKENS, MAX_ROTATING_TOKENS + 1])
async def test_decoding_alone_rotates_where_it_attends_while_few_sequences_decode(
    open_engine: OpenEngine, num_streams: int
) -> None:
    prompt, sampling = list(range(1, 25)), SamplingParams(max_tokens=6, ignore_eos=True)
    async with open_engine("llama", "bfloat16", time_kernels=True) as engine:
        await engine.loaded()

        async def answer() -> None:
            async for _ in engine.stream(prompt, sampling):
                pass

        await asyncio.gather(*(answer() for _ in range(num_streams)))
        steps = {time.tokens: 0 for time in engine.kernel_times()}
        for time in engine.kernel_times():
            if time.kernel.startswith("rope_cache"):
                steps[time.tokens] += time.steps
        decoding = bucket_for(num_streams, bucket_sizes(128))
        assert (steps[decoding] > 0) == (num_streams > MAX_ROTATING_TOKENS)
        assert sum(steps.values()) > steps[decoding]  # prompts rotate before they attend


async def test_attention_leaves_what_the_next_linear_reads_without_a_dispatch_between(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dispatches_of_a_token() -> dict[str, float]:
        options = {"weights": WeightScheme.INT8, "time_kernels": True}
        async with open_engine("llama", "bfloat16", **options) as engine:
            await engine.loaded()
            async for _ in engine.stream([1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True)):
                pass
            layers = engine.model_spec.num_layers
            found: dict[str, float] = {}
            for time in engine.kernel_times():  # one for each shape
                if time.tokens == 1:
                    found[time.kernel] = found.get(time.kernel, 0) + time.dispatches / time.steps / layers
            return found

    direct = await dispatches_of_a_token()
    monkeypatch.setattr(GpuAttention, "writes", lambda self, form: form is RowForm.FLOATS)
    converted = await dispatches_of_a_token()
    assert direct["attention_decode_f16_blocks"] == converted["attention_decode_f16_floats"] == 1
    assert "quantize_activations" not in direct and converted["quantize_activations"] == 1
    assert sum(direct.values()) == pytest.approx(sum(converted.values()) - 1)


async def test_an_engine_that_is_not_timed_has_no_times(open_engine: OpenEngine) -> None:
    async with open_engine("llama", "bfloat16") as engine:
        await engine.logits([1, 2, 3])
        assert engine.kernel_times() == ()


async def test_pages_are_touched_beside_the_attention_of_steps_of_few_tokens_and_nothing_comes_of_it(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = list(range(1, 100))
    async with open_engine(time_kernels=True) as engine:
        expected = await engine.logits(prompt)
    prepared: set[str] = set()
    touched_at_once: list[int] = []
    prepare = KernelLibrary.prepare

    def note_prepared(library: KernelLibrary, requests: Iterable[KernelRequest]) -> list[Kernel]:
        wanted = list(requests)
        prepared.update(request.name for request in wanted)
        return prepare(library, wanted)

    def note_touched(*args: Any, **options: Any) -> None:
        touched_at_once.append(len(args[2]))
        touch_pages(*args, **options)

    monkeypatch.setattr(KernelLibrary, "prepare", note_prepared)
    monkeypatch.setattr("unicorn_async.models.block_recorder.touch_pages", note_touched)
    for module in ("unicorn_async.engine.runner", "unicorn_async.step.dry_run"):
        monkeypatch.setattr(f"{module}.pays_to_touch", lambda *_: True)
    async with open_engine(time_kernels=True) as engine:
        await engine._model.load  # which compiles, too
        assert "touch_pages" in prepared
        assert (await engine.logits(prompt) == expected).all()
        async for _ in engine.stream(prompt, SamplingParams(max_tokens=4, ignore_eos=True)):
            pass
        touched = {time.tokens: time for time in engine.kernel_times() if time.kernel == "touch_pages"}
        sizes = {time.tokens for time in engine.kernel_times()}
        assert set(touched) == {size for size in sizes if size <= MAX_TOUCH_TOKENS} != sizes
        layers = engine.model_spec.num_layers
        assert touched[1].dispatches == touched[1].steps * layers
        # Of each layer what comes behind its attention, and the next layer's first product.
        assert touched_at_once[-layers:] == [4] * (layers - 1) + [3]
