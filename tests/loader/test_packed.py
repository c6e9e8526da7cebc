"""Matrices that lie packed in a checkpoint come to the device with every value that they stand for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.checkpoint import builders
from tests.engine.packed_files import awq, compressed, fp8, fp8_stack, gptq, nf4
from tests.ops.arrays import Arrays
from tests.ops.quant_arrays import read_back
from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.errors import CheckpointError
from unicorn_async.gpu.arena import Arena
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.loader.conversion import WeightConverter, conversion_kernels, factor_converter
from unicorn_async.loader.lora_factors import LoraFactors
from unicorn_async.loader.range_check import RangeCounters
from unicorn_async.loader.read_strategy import ReadMode, ReadStrategy
from unicorn_async.loader.stream import LoadStream
from unicorn_async.loader.trace import LoadTrace
from unicorn_async.lora.plan import make_lora_plan
from unicorn_async.ops.columns import gather_columns
from unicorn_async.tensor import DType, QuantFormat, QuantTensor, Tensor
from unicorn_async.weights.plan import make_plan
from unicorn_async.weights.row_order import HeadOrder, RowRun
from unicorn_async.weights.wanted import WantedTensor

from .loading import download

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tests.engine.packed_files import File, Pack
    from unicorn_async.gpu.device import Device

    Floats = NDArray[np.float16] | NDArray[np.float32]

COLUMNS = 192
CHUNK_BYTES = 128  # ends among the lines of most tensors
HEADS = HeadOrder.rotary(16, rotary_rows=8, interleaved=True, num_heads=2)
RUNS = (RowRun(8, 0, 8), RowRun(24, 8, 8), RowRun(0, 16, 8), RowRun(16, 24, 8))
WANTED = (
    WantedTensor("a.q.weight", (48, COLUMNS), 0, "qkv", 0, head_order=HEADS, is_gathered=True),
    WantedTensor("a.k.weight", (40, COLUMNS), 0, "qkv", 48, is_gathered=True),
    WantedTensor("b.up.weight", (32, COLUMNS), 1, "up", runs=RUNS, is_gathered=True),
)
CASES: dict[str, tuple[Mapping[str, object], Pack, QuantFormat]] = {}


def _compressed(kind: str, **weights: object) -> dict[str, object]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group}}


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True, "desc_act": False}
_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, "actorder": None}
_INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
_E4M3 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
_NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
CASES |= {
    "nf4": (_NF4, nf4(nested=False), QuantFormat.NF4),
    "nf4-nested": ({**_NF4, "bnb_4bit_use_double_quant": True}, nf4(nested=True), QuantFormat.NF4),
    "fp8-blocks": ({**_FP8, "weight_block_size": [16, 128]}, fp8(16, 128), QuantFormat.F8_E4M3),
    "fp8-tensors": (_FP8, fp8(0, 0, "weight_scale", "bfloat16"), QuantFormat.F8_E4M3),
    "awq": (_AWQ, awq(32), QuantFormat.UINT4),
    "gptq4": (_GPTQ, gptq(4, 64), QuantFormat.INT4),
    "gptq4-rows": ({**_GPTQ, "group_size": -1, "desc_act": True}, gptq(4, 0), QuantFormat.INT4),
    "gptq4-zeros": ({**_GPTQ, "sym": False}, gptq(4, 64, symmetric=False), QuantFormat.UINT4),
    "gptq4-v2": (
        {**_GPTQ, "sym": False, "checkpoint_format": "gptq_v2"},
        gptq(4, 64, symmetric=False, version=2),
        QuantFormat.UINT4,
    ),
    "gptq4-order": ({**_GPTQ, "group_size": 32, "desc_act": True}, gptq(4, 32, act_order=True), QuantFormat.INT4),
    "gptq8-order": (
        {**_GPTQ, "group_size": 32, "desc_act": True, "bits": 8},
        gptq(8, 32, act_order=True),
        QuantFormat.INT8,
    ),
    "gptq8": ({**_GPTQ, "bits": 8}, gptq(8, 64), QuantFormat.INT8),
    "int4": (_compressed("pack-quantized", **_INT4), compressed(4, 32), QuantFormat.INT4),
    "int4-zeros": (
        _compressed("pack-quantized", **{**_INT4, "symmetric": False}),
        compressed(4, 32, symmetric=False),
        QuantFormat.UINT4,
    ),
    "int8-packed": (_compressed("pack-quantized", **_INT8), compressed(8, 0), QuantFormat.INT8),
    "int8": (_compressed("int-quantized", **_INT8), compressed(8, 0, packed=False), QuantFormat.INT8),
    "fp8-rows": (
        _compressed("float-quantized", **_E4M3),
        fp8(1, 0, "weight_scale", "bfloat16"),
        QuantFormat.F8_E4M3,
    ),
}


def made(pack: Pack) -> tuple[list[File], dict[str, Floats]]:
    """A file's tensors, and what their matrices stand for, as the file has them."""
    tensors: list[File] = []
    exact: dict[str, Floats] = {}
    for number, want in enumerate(WANTED):
        value = np.random.default_rng(number).standard_normal(want.shape).astype(np.float32) * np.float32(0.1)
        value[::5] *= 20
        packed, exact[want.name] = pack(want.name.removesuffix(".weight"), value)
        tensors += packed
    return tensors, exact


def in_order(exact: Mapping[str, Floats]) -> dict[str, Floats]:
    """The destinations: rows as the model wants them."""
    q, up = exact["a.q.weight"], exact["b.up.weight"]
    heads = [head[list(HEADS.rows)] if number < 2 else head for number, head in enumerate(q.reshape(3, 16, COLUMNS))]
    rows = np.concatenate([up[run.file_row : run.file_row + run.count] for run in RUNS])
    return {"qkv": np.concatenate([*heads, exact["a.k.weight"]]), "up": rows}


def gathered(arrays: Arrays, order: Tensor) -> Floats:
    """The numbers of columns in an order."""
    (columns,) = order.shape
    x, out = arrays.put(np.arange(columns, dtype=np.float32)[None]), arrays.poisoned(1, columns)
    arrays.run(
        lambda recorder: gather_columns(recorder, arrays.device.kernels, x=x.tensor, order=order, out=out.tensor)
    )
    return out.values[0].copy()


async def load(
    device: Device,
    directory: Path,
    quantization: Mapping[str, object],
    tensors: list[File],
    *,
    wanted: Sequence[WantedTensor] = WANTED,
    chunk_bytes: int = CHUNK_BYTES,
    trace: LoadTrace | None = None,
    progress: list[tuple[int, int]] | None = None,
) -> dict[str, Floats]:
    """Load a directory in small chunks; returns what the destinations stand for, and those in F16 as they are.

    `progress` gets the bytes that were loaded in the end, and those that were to be.
    """
    own = {name: (dtype, shape, data) for name, dtype, shape, data in tensors}
    config = {"architectures": ["Test"], "quantization_config": quantization}
    checkpoint = Checkpoint.read(builders.write(directory, own, config=config))
    plan, lora = make_plan(checkpoint, wanted, chunk_bytes=chunk_bytes), make_lora_plan((), wanted)
    device.kernels.prepare(conversion_kernels(plan, lora))
    arena, counters, arrays = Arena(device.memory, MemoryKind.DEVICE, 1 << 18), None, Arrays(device)
    try:
        counters = RangeCounters(device.memory, plan, lora)
        places = {dest.name: arena.allocate(dest.nbytes) for dest in plan.destinations}
        factors = LoraFactors(device, lora, plan, convert=factor_converter(device.kernels), staging_bytes=1 << 16)
        stream = LoadStream(
            device,
            plan,
            checkpoint.files,
            places,
            convert=WeightConverter(device.kernels, plan, counters, lora, factors).record,
            strategy=ReadStrategy(ReadMode.WARM, 2),
            stamps=checkpoint.stamps,
            staging_bytes=1 << 15,
            factors=factors,
            out_of_range=counters,
            trace=trace,
        )
        try:
            await stream.run()
            if progress is not None:
                assert stream.progress.bytes_total == plan.bytes_to_read
                progress.append((stream.progress.bytes_loaded, stream.progress.bytes_total))
        finally:
            await stream.close()
        found = {}
        for dest in plan.destinations:
            place = places[dest.name]
            if dest.is_order:
                assert isinstance(dest.dtype, DType)
                found[dest.name] = gathered(arrays, Tensor(place.address, dest.shape, dest.dtype))
                continue
            if dest.dtype is DType.F16:
                found[dest.name] = np.frombuffer(download(device, place)[: dest.nbytes], np.float16).reshape(dest.shape)
                continue
            assert isinstance(dest.dtype, QuantFormat) and len(dest.shape) == 2
            shape = dest.shape[0], dest.shape[1]
            found[dest.name] = read_back(arrays, QuantTensor(place.address, shape, dest.dtype)).copy()
        return found
    finally:
        device.wait_idle()
        device.memory.collect()
        arrays.close()
        if counters is not None:
            counters.close()
        arena.close()


@pytest.mark.parametrize("name", CASES)
async def test_every_value_is_what_was_meant_in_any_order_of_rows(device: Device, tmp_path: Path, name: str) -> None:
    quantization, pack, kind = CASES[name]
    tensors, exact = made(pack)
    found = await load(device, tmp_path, quantization, tensors)
    orders = {dest: order.astype(int) for dest, order in found.items() if dest.endswith("_order")}
    assert orders.keys() == ({"qkv_order", "up_order"} if name.endswith("-order") else set())
    for dest, expected in in_order(exact).items():
        order = orders.get(f"{dest}_order", slice(None))
        np.testing.assert_array_equal(found[dest], expected[:, order])
    checkpoint = Checkpoint.read(tmp_path)
    assert {source.dtype for source in checkpoint.tensors.values()} == {kind.value}


@pytest.mark.parametrize("parts", [0, 1, 2], ids=["blocks", "experts", "gates"])
async def test_experts_in_one_tensor_are_what_was_meant(device: Device, tmp_path: Path, parts: int) -> None:
    stem = "a.experts.gate_up_proj"
    want = WantedTensor(stem, (3 * 64, COLUMNS), 0, "gate_up", stacked=3, is_expert=True)
    value = np.random.default_rng(9).standard_normal((3, 64, COLUMNS)).astype(np.float32)
    packed = fp8_stack(stem, value, (64 // parts, COLUMNS) if parts else (16, 128))
    block = {} if parts else {"weight_block_size": [16, 128]}
    found = await load(device, tmp_path, {**_FP8, **block}, packed[0], wanted=(want,))
    np.testing.assert_array_equal(found["gate_up"], packed[1].reshape(-1, COLUMNS))


@pytest.mark.parametrize("name", ["awq", "gptq4", "gptq4-order", "gptq8-order", "nf4-nested"])
async def test_what_is_to_be_read_is_what_is_read(device: Device, tmp_path: Path, name: str) -> None:
    quantization, pack, _ = CASES[name]
    trace = LoadTrace(tmp_path / "trace.json")
    progress: list[tuple[int, int]] = []
    await load(device, tmp_path / "model", quantization, made(pack)[0], trace=trace, progress=progress)
    await trace.write()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    num_read = sum(event["args"]["bytes"] for event in events if event["ph"] == "X")
    assert progress == [(num_read, num_read)]


@pytest.mark.parametrize(
    ("case", "name", "data", "message"),
    [
        ("fp8-blocks", "a.k.weight", b"\x7f\xff", r"'a.k.weight': 2 values are no numbers \(NaN\)"),
        ("fp8-blocks", "a.k.weight_scale_inv", b"\0\0\xc0\x7f", r"'a.k.weight_scale_inv': scales for 32 blocks .* 145"),
        (
            "int8",
            "b.up.weight_scale",
            b"\x80\x7f",
            r"'b.up.weight_scale': scales for 6 blocks .* 507.8",
        ),
        ("gptq4", "a.q.qzeros", b"\x78", r"'a.q.qzeros': zero points for 2 blocks are not 8"),
        ("gptq8", "a.q.qzeros", b"\0", r"'a.q.qzeros': zero points for 2 blocks are not 128"),
        ("gptq4", "b.up.g_idx", b"\1\0\0\0\xff\xff\xff\x7f", r"'b.up.g_idx': 2 of 192 columns .* group of 64"),
    ],
)
async def test_what_a_file_s_values_break_is_an_error_of_the_load(
    device: Device, tmp_path: Path, case: str, name: str, data: bytes, message: str
) -> None:
    quantization, pack, _ = CASES[case]
    tensors = [
        (own, dtype, shape, data + old[len(data) :] if own == name else old) for own, dtype, shape, old in made(pack)[0]
    ]
    with pytest.raises(CheckpointError, match=message):
        await load(device, tmp_path, quantization, tensors)
