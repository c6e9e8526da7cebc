"""Packed matrices of latent attention are taken apart: keys' parts become dense, with rows for columns."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.checkpoint import builders
from tests.checkpoint.partial_files import Coming
from tests.engine.packed_files import NORMAL_FLOATS, fp8
from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.errors import CheckpointError
from unicorn_async.loader.read_strategy import ReadMode, ReadStrategy
from unicorn_async.loader.source import LoadSource
from unicorn_async.weights.plan import make_plan
from unicorn_async.weights.row_order import RowRun
from unicorn_async.weights.wanted import WantedTensor

from .test_packed import CASES, load

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tests.engine.packed_files import File, Pack
    from unicorn_async.gpu.device import Device

    Floats = NDArray[np.float32]

NAME = "a.kv_b.weight"
HEADS, PLAIN, VALUE, LATENT = 3, 24, 16, 192  # so that blocks of 16 rows have some of both parts
ROWS = PLAIN + VALUE
SMALL = 2048  # bytes of a chunk that has some of the lines


def wanted(latent: int = LATENT) -> tuple[WantedTensor, WantedTensor]:
    """As `LatentAttention` has them."""
    whole = WantedTensor(NAME, (HEADS * latent, PLAIN), 0, "k_b", file_rows=HEADS * ROWS, is_kept=True)
    of_keys = tuple(RowRun(head * ROWS, head * PLAIN, PLAIN) for head in range(HEADS))
    of_values = tuple(RowRun(head * ROWS + PLAIN, head * VALUE, VALUE) for head in range(HEADS))
    return (
        replace(whole, stacked=HEADS, is_transposed=True, runs=of_keys),
        replace(whole, shape=(HEADS * VALUE, latent), dest="v_b", runs=of_values),
    )


def made(pack: Pack, latent: int = LATENT) -> tuple[list[File], Floats]:
    value = np.random.default_rng(7).standard_normal((HEADS * ROWS, latent)).astype(np.float32) * np.float32(0.1)
    value[::5] *= 20
    return pack(NAME.removesuffix(".weight"), value)


def keys_of(values: Floats) -> NDArray[np.float16]:
    keys = values.reshape(HEADS, ROWS, -1)[:, :PLAIN]
    return keys.astype(np.float16).swapaxes(1, 2).reshape(-1, PLAIN)


def values_of(values: Floats) -> Floats:
    return values.reshape(HEADS, ROWS, -1)[:, PLAIN:].reshape(HEADS * VALUE, -1)


def normal_floats(tensors: list[File]) -> Floats:
    """What NormalFloat4 stands for, which is not rounded to whole 127ths here."""
    found = {name.removeprefix(NAME): data for name, _, _, data in tensors}
    pairs = np.frombuffer(found[""], np.uint8)
    codes = np.stack([pairs >> 4, pairs & 15], axis=1).reshape(-1, 64)
    scales = np.frombuffer(found[".absmax"], np.uint8 if ".nested_absmax" in found else np.float32)
    if ".nested_absmax" in found:
        levels, factors = (np.frombuffer(found[f".nested_{name}"], np.float32) for name in ("quant_map", "absmax"))
        offset = json.loads(found[".quant_state.bitsandbytes__nf4"])["nested_offset"]
        scales = levels[scales] * np.repeat(factors, 256)[: scales.size] + np.float32(offset)
    return (NORMAL_FLOATS[codes] * scales[:, None]).reshape(HEADS * ROWS, LATENT)


@pytest.mark.parametrize("chunk_bytes", [SMALL, 1 << 20], ids=["parts", "whole"])
@pytest.mark.parametrize("name", CASES)
async def test_keys_are_rounded_once_to_halves_and_values_stay_what_they_are(
    device: Device, tmp_path: Path, name: str, chunk_bytes: int
) -> None:
    quantization, pack, _ = CASES[name]
    tensors, exact = made(pack)
    found = await load(device, tmp_path, quantization, tensors, wanted=wanted(), chunk_bytes=chunk_bytes)
    meant = normal_floats(tensors) if name.startswith("nf4") else exact
    assert found["k_b"].dtype == np.float16
    np.testing.assert_array_equal(found["k_b"], keys_of(meant))
    is_sorted = name.endswith("-order")  # the sums of latents that these meet are not
    assert (found["v_b"].dtype == np.float16) == is_sorted and found.keys() == {"k_b", "v_b"}
    np.testing.assert_array_equal(found["v_b"], values_of(exact).astype(found["v_b"].dtype))


async def test_values_whose_rows_are_no_whole_units_become_halves_too(device: Device, tmp_path: Path) -> None:
    quantization = {**CASES["fp8-blocks"][0], "weight_block_size": [16, 32]}
    tensors, exact = made(fp8(16, 32), latent=40)
    found = await load(device, tmp_path, quantization, tensors, wanted=wanted(40), chunk_bytes=SMALL)
    np.testing.assert_array_equal(found["k_b"], keys_of(exact))
    assert found["v_b"].dtype == np.float16
    np.testing.assert_array_equal(found["v_b"], values_of(exact).astype(np.float16))


@pytest.mark.parametrize(
    ("case", "suffix", "data", "message"),
    [
        ("fp8-blocks", "weight", b"\x7f\xff", r"'a.kv_b.weight': 2 values do not fit F16: .* 65504 .*, or not finite"),
        ("fp8-rows", "weight_scale", b"\x80\x7f", r"'a.kv_b.weight': 192 values do not fit F16"),
        ("gptq4-order", "g_idx", b"\x07\0\0\0", r"'a.kv_b.g_idx': column 0 is in group 7, expected 0 to 5"),
        ("gptq4", "g_idx", b"\x07\0\0\0", r"'a.kv_b.g_idx': 1 of 192 columns"),
    ],
)
async def test_what_a_file_s_values_break_is_an_error_of_the_load(
    device: Device, tmp_path: Path, case: str, suffix: str, data: bytes, message: str
) -> None:
    quantization, pack, _ = CASES[case]
    tensors = [
        (name, dtype, shape, data + old[len(data) :] if name == f"a.kv_b.{suffix}" else old)
        for name, dtype, shape, old in made(pack)[0]
    ]
    with pytest.raises(CheckpointError, match=message):
        await load(device, tmp_path, quantization, tensors, wanted=wanted(), chunk_bytes=SMALL)


async def test_what_lies_beside_codes_in_another_file_is_waited_for(tmp_path: Path) -> None:
    quantization, pack, _ = CASES["fp8-blocks"]
    (codes, scales), config = made(pack)[0], {"architectures": ["Test"], "quantization_config": quantization}
    directory = builders.write(tmp_path, {codes[0]: codes[1:]}, {scales[0]: scales[1:]}, config=config)
    checkpoint = Checkpoint.read(directory)
    plan = make_plan(checkpoint, wanted())
    files = [Coming.of(path, 0, turn=turn) for turn, path in enumerate(checkpoint.files)]
    partial = {one.path: one.file for one in files}
    source = LoadSource(tuple(checkpoint.files), plan.chunks, ReadStrategy(ReadMode.WARM, 1), partial=partial)
    (keys,) = [chunk for chunk in plan.chunks if chunk.dest == "k_b"]
    assert (
        keys.nbytes == keys.read_bytes == HEADS * ROWS * LATENT + 4 * 8 * 2
    )  # a staging buffer has room for all of it
    assert source.arrival(keys) == (1, files[1].file.nbytes)
    waiting = asyncio.create_task(source.arrived([keys]))
    files[0].come()
    await asyncio.sleep(0)
    assert not waiting.done()
    files[1].come()
    await asyncio.wait_for(waiting, 120)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((7, 2), r"'a.kv_b.weight_scale_inv': expected F32 \[8, 2\] or \[120, 1\] .*, got F32 \[7, 2\]"),
        ((8, 1), r"'a.kv_b.weight_scale_inv': expected F32 \[8, 2\] .*, got F32 \[8, 1\]"),
    ],
)
async def test_scales_of_another_shape_are_an_error_with_both(
    device: Device, tmp_path: Path, shape: tuple[int, int], message: str
) -> None:
    quantization, pack, _ = CASES["fp8-blocks"]
    codes, scales = made(pack)[0]
    cut = (scales[0], scales[1], shape, scales[3][: 4 * shape[0] * shape[1]])
    with pytest.raises(CheckpointError, match=message):
        await load(device, tmp_path, quantization, [codes, cut], wanted=wanted())
