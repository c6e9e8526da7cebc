"""Weights on their way to the device: adapters blended in before one rounding, and nothing that does not fit unseen."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.checkpoint import builders
from tests.loader.test_stream import download
from tests.lora import adapters
from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.config import WeightScheme
from unicorn_async.errors import CheckpointError
from unicorn_async.gpu.arena import Arena
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.loader.conversion import WeightConverter, conversion_kernels, factor_converter
from unicorn_async.loader.lora_factors import LoraFactors, lora_bytes, scratch_bytes
from unicorn_async.loader.range_check import RangeCounters
from unicorn_async.loader.read_strategy import ReadMode, ReadStrategy
from unicorn_async.loader.stream import LoadStream
from unicorn_async.lora.adapter import read_adapters
from unicorn_async.lora.plan import make_lora_plan
from unicorn_async.lora_spec import LoraSpec
from unicorn_async.tensor import DType, QuantTensor
from unicorn_async.weights.plan import make_plan
from unicorn_async.weights.wanted import WantedTensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from unicorn_async.gpu.device import Device
    from unicorn_async.weights.plan import DestTensor

    Floats = NDArray[np.float32]

EMBED, Q, K, V, UP, HEAD, NORM = (
    f"{name}.weight"
    for name in ("model.embed_tokens", "a.q_proj", "a.k_proj", "a.v_proj", "b.up_proj", "lm_head", "model.norm")
)
WANTED = (
    WantedTensor(EMBED, (96, 192), -1, "embed", is_table=True),
    WantedTensor(Q, (72, 192), 0, "qkv", 0),
    WantedTensor(K, (40, 192), 0, "qkv", 72),
    WantedTensor(V, (40, 192), 0, "qkv", 112),
    WantedTensor(UP, (64, 192), 1, "up"),
    WantedTensor(NORM, (192,), 2, "norm", as_f32=True),
    WantedTensor(HEAD, (96, 192), 2, "head", is_table=True),
)
CHUNK_BYTES = 5 * 1024  # ends in the middle of rows
DTYPES = ["F32", "F16", "BF16"]


def grid(*shape: int, seed: int) -> Floats:
    """Values on a coarse grid: every product and every sum of them here is exact in f32."""
    return np.random.default_rng(seed).integers(-96, 97, shape).astype(np.float32) / 8


def checkpoint_values() -> dict[str, Floats]:
    return {want.name: grid(*want.shape, seed=number) for number, want in enumerate(WANTED)}


class Adapter:
    """An adapter of rank 4 with scale 1 or 2 for some weights, on disk and as the matrices that it adds."""

    def __init__(self, directory: Path, targets: tuple[str, ...], *, dtype: str = "F32", rslora: bool = False) -> None:
        tensors, self.changes = {}, {}
        shapes = {want.name: want.shape for want in WANTED}
        for number, target in enumerate(targets):
            rows, columns = shapes[target]
            module = adapters.PREFIX + target.removesuffix(".weight")
            if target == EMBED:
                a, b = grid(4, rows, seed=number + 50) * 8, grid(columns, 4, seed=number + 90)
                names = (f"{module}.lora_embedding_A", f"{module}.lora_embedding_B")
                product = (b @ a).T
            else:
                a, b = grid(4, columns, seed=number + 50) * 8, grid(rows, 4, seed=number + 90)
                names = (f"{module}.lora_A.weight", f"{module}.lora_B.weight")
                product = b @ a
            tensors |= {names[0]: adapters.stored(a, dtype), names[1]: adapters.stored(b, dtype)}
            self.changes[target] = product * (2 if rslora else 1)
        self.directory = adapters.write_adapter(directory, tensors, lora_alpha=4, use_rslora=rslora)


def merged(values: Mapping[str, Floats], *blended: tuple[Adapter, float]) -> dict[str, Floats]:
    """The weights with the adapters' changes, exact."""
    result: dict[str, NDArray[Any]] = {name: value.astype(np.float64) for name, value in values.items()}
    for adapter, weight in blended:
        for target, change in adapter.changes.items():
            result[target] = result[target] + weight * change.astype(np.float64)
    exact = {name: value.astype(np.float32) for name, value in result.items()}
    assert all((exact[name] == value).all() for name, value in result.items())
    return exact


def bf16_bits(values: Floats) -> NDArray[np.uint16]:
    """The nearest, and even where two are as near."""
    words = values.view(np.uint32)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)


def without_padding(dest: DestTensor, data: bytes) -> bytes:
    """A destination's bytes without those between the planes of a quantised tensor, which nothing writes."""
    if isinstance(dest.dtype, DType):
        return data
    planes = QuantTensor(0, dest.shape, dest.dtype).planes
    sizes = dest.dtype.layout.plane_bytes(dest.shape[0] * dest.shape[1])
    return b"".join(data[start : start + size] for start, size in zip(planes, sizes, strict=True))


class Loading:
    """Loads a checkpoint of WANTED with adapters; `run` gives the bytes of every destination."""

    def __init__(self, device: Device, directory: Path) -> None:
        self.device = device
        self.directory = directory
        self.number = 0

    async def run(
        self,
        values: Mapping[str, Floats],
        dtype: str,
        *specs: LoraSpec,
        scheme: WeightScheme = WeightScheme.AUTO,
        chunk_bytes: int = CHUNK_BYTES,
        stop_at: int | None = None,
    ) -> dict[str, bytes]:
        """Load; with `stop_at` it is cancelled as soon as so many bytes are there."""
        device = self.device
        self.number += 1
        tensors = {name: adapters.stored(value, dtype) for name, value in values.items()}
        checkpoint = Checkpoint.read(builders.write(self.directory / str(self.number), tensors))
        lora = make_lora_plan(read_adapters(specs), WANTED)
        plan = make_plan(checkpoint, WANTED, scheme=scheme, adapted=lora.changes, chunk_bytes=chunk_bytes)
        device.kernels.prepare(conversion_kernels(plan, lora))
        arena, out_of_range = Arena(device.memory, MemoryKind.DEVICE, 1 << 18), RangeCounters(device.memory, plan, lora)
        try:
            places = {dest.name: arena.allocate(dest.nbytes) for dest in plan.destinations}
            factors = LoraFactors(device, lora, plan, convert=factor_converter(device.kernels), staging_bytes=1 << 16)
            stream = LoadStream(
                device,
                plan,
                checkpoint.files,
                places,
                convert=WeightConverter(device.kernels, plan, out_of_range, lora, factors).record,
                strategy=ReadStrategy(ReadMode.WARM, 2),
                stamps=checkpoint.stamps,
                staging_bytes=4 * chunk_bytes,
                factors=factors,
                out_of_range=out_of_range,
            )
            try:
                task = asyncio.create_task(stream.run())
                if stop_at is not None:
                    async for progress in stream.watch():
                        if progress.bytes_loaded >= stop_at:
                            task.cancel()
                            break
                await task
                return {
                    dest.name: without_padding(dest, download(device, places[dest.name])) for dest in plan.destinations
                }
            finally:
                await stream.close()
        finally:
            device.wait_idle()
            device.memory.collect()
            out_of_range.close()
            arena.close()


@pytest.fixture
def loading(device: Device, tmp_path: Path) -> Iterator[Loading]:
    num_buffers, objects = device.memory.num_buffers, device.live_objects()
    yield Loading(device, tmp_path)
    assert device.memory.num_buffers == num_buffers
    assert device.live_objects() == objects


def expected(values: Mapping[str, Floats], dtype: str) -> dict[str, bytes]:
    """What a load without quantisation leaves on the device."""
    result: dict[str, bytes] = {}
    for want in WANTED:
        value = values[want.name]
        if want.as_f32 or dtype == "F32":
            data: NDArray[Any] = value
        else:
            data = value.astype(np.float16) if dtype == "F16" else bf16_bits(value)
        result[want.dest] = result.get(want.dest, b"") + data.tobytes()
    return result


@pytest.mark.parametrize("dtype", DTYPES)
async def test_a_blended_weight_is_rounded_once(loading: Loading, tmp_path: Path, dtype: str) -> None:
    """Of q, k and v one is not changed, and the head alone has the second adapter."""
    values = checkpoint_values()
    one = Adapter(tmp_path / "one", (Q, V, UP, EMBED))
    two = Adapter(tmp_path / "two", (Q, HEAD), rslora=True, dtype="F16")
    three = Adapter(tmp_path / "three", (Q, UP), dtype="BF16")
    specs = (LoraSpec(one.directory, 0.5), LoraSpec(two.directory, -1.0), LoraSpec(three.directory))
    found = await loading.run(values, dtype, *specs)
    assert found == expected(merged(values, (one, 0.5), (two, -1.0), (three, 1.0)), dtype)


@pytest.mark.parametrize("chunk_bytes", [512, 3 * 1024, 1 << 20])
async def test_how_a_file_is_cut_does_not_matter(loading: Loading, tmp_path: Path, chunk_bytes: int) -> None:
    values, adapter = checkpoint_values(), Adapter(tmp_path / "a", (Q, K, UP))
    found = await loading.run(values, "BF16", LoraSpec(adapter.directory), chunk_bytes=chunk_bytes)
    assert found == expected(merged(values, (adapter, 1.0)), "BF16")


@pytest.mark.parametrize("scheme", [WeightScheme.INT8, WeightScheme.INT4, WeightScheme.NF4])
async def test_quantised_weights_are_those_of_the_blended_values(
    loading: Loading, tmp_path: Path, scheme: WeightScheme
) -> None:
    values = checkpoint_values()
    one, two = Adapter(tmp_path / "one", (Q, K, EMBED)), Adapter(tmp_path / "two", (Q, HEAD))
    specs = (LoraSpec(one.directory), LoraSpec(two.directory, 0.25))
    found = await loading.run(values, "BF16", *specs, scheme=scheme)
    plain = await loading.run(values, "BF16", scheme=scheme)
    right = await loading.run(merged(values, (one, 1.0), (two, 0.25)), "F32", scheme=scheme)
    assert found == right
    assert {name for name in found if found[name] == plain[name]} == {"up", "norm"}


async def test_an_adapter_of_weight_zero_changes_nothing(loading: Loading, tmp_path: Path) -> None:
    values, adapter = checkpoint_values(), Adapter(tmp_path / "a", (Q, EMBED))
    assert await loading.run(values, "F16", LoraSpec(adapter.directory, 0)) == expected(values, "F16")


@pytest.mark.parametrize(
    ("dtype", "scheme", "limit"),
    [
        ("F32", WeightScheme.F16, "3 values do not fit F16: they are beyond 65504 in magnitude, or not finite$"),
        ("BF16", WeightScheme.F16, "3 values do not fit F16"),
        ("F32", WeightScheme.INT8, "3 values do not fit int8: they are beyond 65000"),
        ("BF16", WeightScheme.INT4, "3 values do not fit int4"),
    ],
)
async def test_a_value_that_does_not_fit_fails_the_load_and_names_its_tensor(
    loading: Loading, dtype: str, scheme: WeightScheme, limit: str
) -> None:
    values = checkpoint_values()
    values[K][3, 5], values[K][39, 191], values[K][7, 0] = 1e6, -np.inf, np.nan
    with pytest.raises(CheckpointError, match=rf"tensor 'a.k_proj.weight': {limit}"):
        await loading.run(values, dtype, scheme=scheme)


async def test_bf16_stays_bf16_whatever_its_size(loading: Loading) -> None:
    values = checkpoint_values()
    values[K][3, 5] = 2.0**100
    assert await loading.run(values, "BF16") == expected(values, "BF16")


async def test_an_adapter_with_a_value_that_is_no_number_is_named(loading: Loading, tmp_path: Path) -> None:
    sound, module = Adapter(tmp_path / "sound", (Q, UP)), adapters.PREFIX + K.removesuffix(".weight")
    factors = {
        f"{module}.lora_A.weight": adapters.stored(np.ones((4, 192), np.float32)),
        f"{module}.lora_B.weight": adapters.stored(np.full((40, 4), np.nan, np.float32)),
    }
    broken = adapters.write_adapter(tmp_path / "broken", factors)
    specs = (LoraSpec(sound.directory), LoraSpec(broken))
    message = (
        r"'a.k_proj.weight', blended with LoRA 'broken': \d+ values do not fit BF16: .* not finite; "
        r"the sum is checked alone, so an adapter may be the cause, or the checkpoint's own values$"
    )
    with pytest.raises(CheckpointError, match=message):
        await loading.run(checkpoint_values(), "BF16", *specs)


async def test_a_sum_that_does_not_fit_fails_the_load(loading: Loading, tmp_path: Path) -> None:
    values, adapter = checkpoint_values(), Adapter(tmp_path / "a", (UP,))
    with pytest.raises(CheckpointError, match=r"tensor 'b.up_proj.weight', blended with LoRA 'a': \d+ values do not"):
        await loading.run(values, "F16", LoraSpec(adapter.directory, 1000))


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8])
async def test_a_cancelled_load_leaves_nothing_of_its_adapters(loading: Loading, tmp_path: Path, share: float) -> None:
    values, adapter = checkpoint_values(), Adapter(tmp_path / "a", (Q, K, V, UP, HEAD))
    total = sum(value.nbytes for value in values.values())
    with pytest.raises(asyncio.CancelledError):
        await loading.run(values, "F32", LoraSpec(adapter.directory), stop_at=int(share * total))
    found = await loading.run(values, "F32", LoraSpec(adapter.directory))
    assert found == expected(merged(values, (adapter, 1.0)), "F32")


async def test_an_adapter_that_changes_after_the_check_fails_the_load(loading: Loading, tmp_path: Path) -> None:
    values, adapter = checkpoint_values(), Adapter(tmp_path / "a", (Q,))
    path = adapter.directory / "adapter_model.safetensors"
    loading.device.kernels.prepare = _touching(loading.device.kernels.prepare, path)  # type: ignore[method-assign]
    try:
        with pytest.raises(CheckpointError, match=r"adapter_model.safetensors"):
            await loading.run(values, "F32", LoraSpec(adapter.directory))
    finally:
        del loading.device.kernels.prepare  # type: ignore[attr-defined]


def _touching(prepare: Any, path: Path) -> Any:
    """Return `prepare` with a side effect: it comes after the checks, and before the load."""

    def both(requests: Any) -> Any:
        path.write_bytes(path.read_bytes() + b"more")
        return prepare(requests)

    return both


def test_the_memory_for_adapters_is_known_before(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path / "a", (Q, UP), dtype="F16")
    checkpoint = Checkpoint.read(
        builders.write(tmp_path / "m", {name: adapters.stored(v) for name, v in checkpoint_values().items()})
    )
    lora = make_lora_plan(read_adapters([LoraSpec(adapter.directory)]), WANTED)
    plan = make_plan(checkpoint, WANTED, adapted=lora.changes, chunk_bytes=CHUNK_BYTES)
    assert scratch_bytes(plan) == CHUNK_BYTES
    # (4, 192) twice, (72, 4) and (64, 4), as F32, at multiples of 256
    assert lora_bytes(lora, scratch_bytes(plan)) == 2 * 3072 + 1280 + 1024 + CHUNK_BYTES
    assert {dest.dtype for dest in lora.factors.destinations} == {DType.F32}
