"""The known questions tell right kernels and layouts from wrong ones."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.npu import kernel_library
from tests.npu.builds import write_build
from tests.npu.machine import Machine
from tests.npu.test_attention import HEADS, opened
from tests.turns import Turns
from unicorn_async.errors import NpuSelfCheckError
from unicorn_async.npu import packets
from unicorn_async.npu.attention import NpuOptions
from unicorn_async.npu.context import Context
from unicorn_async.npu.device import Device
from unicorn_async.npu.geometry import CHIPS, NPU1, NPU2, HeadLayout
from unicorn_async.npu.opening import open_attention
from unicorn_async.npu.precision import Products
from unicorn_async.npu.self_check import self_check
from unicorn_async.npu.work import AttentionHeads
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from tests.npu.fake_xrt import Npu
    from unicorn_async.npu.geometry import Chip
    from unicorn_async.npu.manifest import Build

SHAPES = [(1, 1), (8, 4), (6, 6), (32, 8), (64, 1), (24, 24)]  # heads, kv heads


KINDS = [(chip, products) for chip in CHIPS for products in chip.products]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("chip", "products"), KINDS, ids=[f"{chip.name}-{kind.value}" for chip, kind in KINDS])
async def test_sound_kernels_pass_whatever_the_heads_and_the_soft_cap(
    tmp_path: Path, npu: Npu, chip: Chip, products: Products, head_dim: int
) -> None:
    layout = HeadLayout(chip, head_dim)
    with Device.open(Machine(tmp_path / "machine", chip).host()) as device:
        context = Context(device, write_build(tmp_path / "builds", chip, head_dim, products=products))
        for num_heads, num_kv_heads in SHAPES:
            if num_heads // num_kv_heads > layout.rows:
                continue
            heads = AttentionHeads(layout, num_heads, num_kv_heads, 64)
            for soft_cap in (0.0, 0.5, 50.0) if num_heads == 8 else (0.0,):
                async with opened(context, heads, soft_cap=soft_cap) as attention:
                    await self_check(attention)
                    assert attention.counts.runs == 3
        context.close()


@pytest.mark.parametrize("items", [1, 5])
async def test_questions_that_do_not_fit_into_a_run_are_cut(context: Context, items: int) -> None:
    async with opened(context, options=NpuOptions(items_per_run=items)) as attention:
        await self_check(attention)
        assert attention.counts.runs > 3


async def test_the_questions_can_be_cancelled_at_any_await(
    machine: Machine, build: Build, npu: Npu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the event loop goes on, from the opening of the NPU to its closing; the fixture finds what is left."""

    async def run() -> None:
        async with open_attention(HEADS, builds=build.xclbin.parent, host=machine.host()):
            pass

    assert await Turns(monkeypatch).cancel_at_each(run, None, 1) > 20
    await run()


ONE = "aie::broadcast<int32_t, LANES>(1)"
KERNEL_MISTAKES = {
    "K · Q over the first 8 dimensions alone": ("attention.cc", "step < DIM_STEPS", "step < 1"),
    "K · Q without the last dimensions": ("attention.cc", "step < DIM_STEPS", "step < DIM_STEPS - SCORE_PARTS"),
    "P · V of V's first dimensions alone": ("attention.cc", "* DIM_PRODUCTS + first)", "* DIM_PRODUCTS)"),
    "P · V of the first 8 keys of a chunk alone": ("attention.cc", "step < KEY_STEPS", "step < 1"),
    "all cores of a team have the first one's queries": (
        "attention.cc",
        "unsigned(state.place) * HEAD_DIM",
        "0 * HEAD_DIM",
    ),
    "all cores of a team have the first one's bounds": (
        "attention.cc",
        "strip * TEAM + unsigned(place)",
        "strip * TEAM",
    ),
    "no rounding set for chunks": ("attention.cc", "rounding_mode::conv_even);  //", "rounding_mode::floor);  //"),
    "e^x with 9 in place of 1/24": ("functions.h", "1.0f / 24", "9.0f"),
    "e^x with 0.6 in place of 1/2": ("functions.h", "all(0.5f)", "all(0.6f)"),
    "a key after the query is seen": ("attention.cc", "aie::le(key, last)", f"aie::le(key, aie::add(last, {ONE}))"),
    "a key before the window is seen": ("attention.cc", "aie::ge(key, first)", f"aie::ge(aie::add(key, {ONE}), first)"),
    "results are not scaled when the maximum rises": (
        "attention.cc",
        "times(F32(aie::load_v<LANES>(results + i)), factor)",
        "F32(aie::load_v<LANES>(results + i))",
    ),
    "sums are not scaled when the maximum rises": (
        "attention.cc",
        "    aie::store_v(sums, times",
        "    if (false) aie::store_v(sums, times",
    ),
}


TOO_SMALL_FOR_BFP16 = ("e^x with 9 in place of 1/24", "e^x with 0.6 in place of 1/2")  # answers are as far off without


@pytest.mark.combinations("every mistake on either chip")
@pytest.mark.parametrize(
    ("chip", "head_dim", "products"),
    [(NPU1, 64, Products.BF16), (NPU2, 128, Products.BF16), (NPU2, 128, Products.BFP16)],
)
@pytest.mark.parametrize("mistake", KERNEL_MISTAKES)
async def test_a_mistake_in_the_kernels_is_seen(
    tmp_path: Path,
    npu: Npu,
    kernels: Path,
    monkeypatch: pytest.MonkeyPatch,
    mistake: str,
    chip: Chip,
    head_dim: int,
    products: Products,
) -> None:
    name, right, wrong = KERNEL_MISTAKES[mistake]
    # Always the same folder for a mistake, so that its kernels are built once and kept; and no other test's.
    folder = kernels / "mistakes" / f"{list(KERNEL_MISTAKES).index(mistake)}-{head_dim}"
    shutil.copytree(resource_dir("npu"), folder, dirs_exist_ok=True)
    source = folder / "kernels" / name
    text = source.read_text()
    assert right in text
    source.write_text(text.replace(right, wrong))
    build = write_build(tmp_path / "builds", chip, head_dim, products=products)
    monkeypatch.setattr(kernel_library, "resource_dir", lambda _: folder)
    heads = AttentionHeads(HeadLayout(chip, head_dim), 4, 2, 64)
    with Device.open(Machine(tmp_path / "machine", chip).host()) as device:
        context = Context(device, build)
        async with opened(context, heads) as attention:
            if products is Products.BFP16 and mistake in TOO_SMALL_FOR_BFP16:
                await self_check(attention)
            else:
                with pytest.raises(NpuSelfCheckError, match=r"results are wrong|do not round to nearest"):
                    await self_check(attention)
        context.close()


def dims_of_results(*args: Any) -> None:
    packets.read_results(*args)
    args[-1][:] = args[-1][:, :, ::-1].copy()


def heads_of_results(*args: Any) -> None:
    packets.read_results(*args)
    args[-1][:] = np.roll(args[-1], 1, axis=1)


def heads_of_one_kv_head(*args: Any) -> None:
    packets.read_results(*args)
    args[-1][:, :2] = args[-1][:, 1::-1].copy()


def rows_of_results(*args: Any) -> None:
    packets.read_results(*args)
    args[-1][:2] = args[-1][1::-1].copy()


def first_dims_of_queries(memory: Any, heads: Any, part: Any, q: Any) -> None:
    packets.write_queries(memory, heads, part, np.where(np.arange(q.shape[2]) < 8, q, np.uint16(0)))


def last_dim_of_queries(memory: Any, heads: Any, part: Any, q: Any) -> None:
    packets.write_queries(memory, heads, part, np.where(np.arange(q.shape[2]) < q.shape[2] - 1, q, np.uint16(0)))


def kv_heads(cache: Any, heads: Any, k: Any, v: Any, slots: Any) -> Any:
    return packets.write_tokens(cache, heads, k[:, ::-1], v[:, ::-1], slots)


def dims_of_values(cache: Any, heads: Any, k: Any, v: Any, slots: Any) -> Any:
    return packets.write_tokens(cache, heads, k, v[:, :, ::-1], slots)


def dims_of_keys(cache: Any, heads: Any, k: Any, v: Any, slots: Any) -> Any:
    k = np.concatenate((k[:, :, :1], k[:, :, :0:-1]), axis=2)
    return packets.write_tokens(cache, heads, k, v, slots)


def two_dims_of_keys(cache: Any, heads: Any, k: Any, v: Any, slots: Any) -> Any:
    k = k.copy()
    k[:, :, 9:11] = k[:, :, 10:8:-1]
    return packets.write_tokens(cache, heads, k, v, slots)


def tokens_of_values(cache: Any, heads: Any, k: Any, v: Any, slots: Any) -> Any:
    return packets.write_tokens(cache, heads, k, np.roll(v, 1, axis=0), slots)


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        *(
            ("run_buffers.read_results", f)
            for f in (dims_of_results, heads_of_results, heads_of_one_kv_head, rows_of_results)
        ),
        *(("run_buffers.write_queries", f) for f in (first_dims_of_queries, last_dim_of_queries)),
        *(("cache.write_tokens", f) for f in (kv_heads, dims_of_values, dims_of_keys, two_dims_of_keys)),
        ("cache.write_tokens", tokens_of_values),
    ],
)
async def test_what_is_in_another_place_than_the_kernels_take_it_to_be_is_seen(
    context: Context, monkeypatch: pytest.MonkeyPatch, name: str, mistake: Any
) -> None:
    monkeypatch.setattr(f"unicorn_async.npu.{name}", mistake)
    async with opened(context, AttentionHeads(HEADS.layout, 8, 4, 64)) as attention:
        with pytest.raises(NpuSelfCheckError, match="results are wrong"):
            await self_check(attention)
