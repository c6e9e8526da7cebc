"""The kernels' C++, as g++ builds it, against float64."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.npu.kernel_library import FakeTeam, build_kernels, defines_of
from tests.npu.reference import attention, from_bf16, mean_relative_error, to_bf16
from unicorn_async.npu.geometry import CORE_BUFFER_BYTES, NPU1, NPU2, HeadLayout
from unicorn_async.npu.packets import parameters, write_tokens
from unicorn_async.npu.precision import PRECISIONS, Products
from unicorn_async.npu.work import AttentionHeads, SequenceWork, plan_items

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

CONTEXTS = (1, 63, 64, 65, 1024, 1025, 4096)
LAYOUTS = [HeadLayout(chip, head_dim) for chip in (NPU1, NPU2) for head_dim in (64, 128, 256)]
IDS = [f"{layout.chip.name}-{layout.head_dim}" for layout in LAYOUTS]


def test_kernels_that_two_processes_build_at_the_same_time_are_whole(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as two:
        built = list(two.map(lambda _: build_kernels(LAYOUTS[0], tmp_path), range(2)))
    assert list(tmp_path.iterdir()) == [built[0]] == [built[1]]
    FakeTeam(built[0], LAYOUTS[0])


class Problem:
    """One sequence with one kv head, in bf16."""

    def __init__(
        self, layout: HeadLayout, context: int, queries: int = 1, group: int = 2, *, spread: float = 1.0
    ) -> None:
        rng = np.random.default_rng(context * 1000 + queries)
        self.heads = AttentionHeads(layout, group, 1, 64)
        self.context, self.queries = context, queries
        scale = spread / layout.head_dim**0.5
        self.q = to_bf16(rng.standard_normal((queries, group, layout.head_dim)) * scale)
        self.k, self.v = (to_bf16(rng.standard_normal((context, 1, layout.head_dim))) for _ in "kv")

    def expected(self, **options: Any) -> NDArray[np.float64]:
        return attention(from_bf16(self.q), from_bf16(self.k), from_bf16(self.v), **options)

    def found(
        self,
        kernels: Path,
        *,
        window: int = 0,
        soft_cap: float = 0.0,
        past: float = 1e4,
        defines: tuple[str, ...] = (),
    ) -> NDArray[np.float32]:
        """What a team of cores makes of it; keys and values past the context are `past`."""
        heads, layout = self.heads, self.heads.layout
        blocks = -(-self.context // heads.block_size)
        cache = np.full(heads.cache_bytes(blocks) // 2, to_bf16(np.array([past]))[0], np.uint16)
        write_tokens(cache, heads, self.k, self.v, np.arange(self.context))
        team = FakeTeam(build_kernels(layout, kernels, defines=defines), layout)
        self.cores = team.cores
        out = np.full((self.queries, heads.group, layout.head_dim), np.nan, np.float32)
        work = [SequenceWork(0, self.queries, self.context, range(blocks))]
        for item in plan_items(heads, work, window=window, num_blocks=blocks):
            rows = self.q[item.first_query : item.first_query + item.num_queries].reshape(-1, layout.head_dim)
            strips = -(-len(rows) // layout.chip.tile_n)
            for buffer in self._buffers(item, rows, strips, cache, window, soft_cap):
                team.feed(buffer)
            found = np.stack(team.strips[:strips]).reshape(strips, layout.head_dim, -1)
            assert team.is_idle and [strip.any() for strip in team.strips[strips:]] == [False] * (strips % 2)
            team.strips.clear()
            found = found.transpose(0, 2, 1).reshape(-1, layout.head_dim)[: len(rows)]
            out[item.first_query : item.first_query + item.num_queries] = found.reshape(
                -1, heads.group, layout.head_dim
            )
        return out

    def _buffers(
        self, item: Any, rows: Any, strips: int, cache: Any, window: int, soft_cap: float
    ) -> list[NDArray[np.uint8]]:
        layout = self.heads.layout
        words = parameters(self.heads, [item], strips=[strips], window=window, soft_cap=soft_cap)[0].view(np.uint8)
        first = np.full(CORE_BUFFER_BYTES, 0xFF, np.uint8)
        first[: len(words)] = words
        padded = np.full((layout.rows, layout.head_dim), 0x7FC0, np.uint16)  # rows that are not there are NaN
        padded[: len(rows)] = rows
        queries = padded.reshape(layout.num_strips, layout.chip.tile_n, layout.head_dim).transpose(0, 2, 1).ravel()
        chunks = [
            cache.view(np.uint8)[offset + done : offset + done + CORE_BUFFER_BYTES]
            for offset, size in item.runs
            for done in range(0, size, CORE_BUFFER_BYTES)
        ]
        used = queries.view(np.uint8).reshape(-1, CORE_BUFFER_BYTES)[: -(-strips // layout.core_strips)]
        return [first, *used, *(chunk.copy() for chunk in chunks)]

    def rounded_down(self) -> Counter[str]:
        """Values that changed because a kernel had not set the rounding, kernel by kernel, of all cores."""
        return sum((core.rounded_down for core in self.cores), Counter())


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("window", [0, 48, 1024])
@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_a_decoded_token_equals_float64(kernels: Path, layout: HeadLayout, window: int, context: int) -> None:
    problem = Problem(layout, context)
    found, expected = problem.found(kernels, window=window), problem.expected(window=window)
    assert mean_relative_error(found, expected) <= 3e-3


@pytest.mark.parametrize("queries", [2, 17, 100])
@pytest.mark.parametrize("window", [0, 33])
@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_a_chunk_of_a_prompt_equals_float64(kernels: Path, layout: HeadLayout, window: int, queries: int) -> None:
    problem = Problem(layout, 150, queries, group=3)
    found, expected = problem.found(kernels, window=window), problem.expected(window=window)
    assert mean_relative_error(found, expected) <= 3e-3


@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_the_error_at_4096_is_small_and_unbiased_for_flat_and_for_steep_scores(
    kernels: Path, layout: HeadLayout, spread: float
) -> None:
    problem = Problem(layout, 4096, queries=4, group=8, spread=spread)
    found, expected = problem.found(kernels), problem.expected()
    assert mean_relative_error(found, expected) <= 2e-3
    signed = ((found - expected) * np.sign(expected)).mean() / np.abs(expected).mean()
    assert abs(signed) <= 3e-4


@pytest.mark.parametrize("cap", [0.5, 20.0, 50.0])
@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_scores_are_capped_softly(kernels: Path, layout: HeadLayout, cap: float) -> None:
    problem = Problem(layout, 200, queries=3, spread=20.0)
    found, expected = problem.found(kernels, soft_cap=cap), problem.expected(soft_cap=cap)
    assert mean_relative_error(found, expected) <= 3e-3


def test_one_key_gives_its_value_exactly(kernels: Path) -> None:
    problem = Problem(HeadLayout(NPU1, 128), 1)
    np.testing.assert_allclose(problem.found(kernels)[0], from_bf16(problem.v[[0, 0], 0]), rtol=1e-6)


def test_scores_of_great_magnitude_do_not_overflow(kernels: Path) -> None:
    problem = Problem(HeadLayout(NPU1, 64), 300, spread=1000.0)
    problem.q[:, 1] ^= 0x8000
    found, expected = problem.found(kernels), problem.expected()
    assert mean_relative_error(found, expected) <= 3e-3


def test_a_key_that_no_row_sees_may_be_anything(kernels: Path) -> None:
    problem = Problem(HeadLayout(NPU1, 64), 70)
    np.testing.assert_array_equal(problem.found(kernels, past=0.0), problem.found(kernels, past=1e30))


@pytest.mark.parametrize(("latency", "low", "high"), [(17, 24.0, 28.0), (27, 16.0, 18.0)])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_four_products_are_in_flight_in_both_loops(
    kernels: Path, head_dim: int, latency: int, low: float, high: float
) -> None:
    """Of AIE2, if a chain of products has one in 17 to 27 cycles, as others measured of a load, a step and a store.

    All else is not counted.
    """
    layout = HeadLayout(NPU1, head_dim)
    problem = Problem(layout, 1024, queries=4, group=8)
    problem.found(kernels, defines=(f"HOST_LATENCY={latency}",))
    products = 2 * 4 * 8 * head_dim * problem.context  # 4 queries of 8 heads with K and V, keys that are not seen too
    assert sum(core.tile_products for core in problem.cores) * 4 * 8 * 4 == products
    for core in problem.cores:
        assert low <= core.tile_products * 128 / core.tile_cycles <= high < 4 * 128 / latency


BFP16 = defines_of(Products.BFP16)
BFP16_LAYOUTS = [HeadLayout(NPU2, head_dim) for head_dim in (64, 128, 256)]


@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("layout", BFP16_LAYOUTS, ids=str)
def test_products_in_bfp16_are_as_far_off_as_their_tolerance_allows_and_too_far_for_bf16s(
    kernels: Path, layout: HeadLayout, spread: float
) -> None:
    problem = Problem(layout, 1000, queries=4, group=8, spread=spread)
    found, expected = problem.found(kernels, defines=BFP16, past=1.0), problem.expected()
    error = mean_relative_error(found, expected)
    assert PRECISIONS[Products.BF16].mean_error < error <= PRECISIONS[Products.BFP16].mean_error
    assert abs((found - expected).mean()) / np.abs(expected).mean() <= PRECISIONS[Products.BFP16].bias


@pytest.mark.parametrize(
    ("context", "queries", "window", "soft_cap"), [(1, 1, 0, 0.0), (65, 1, 48, 0.0), (150, 17, 33, 20.0)]
)
@pytest.mark.parametrize("layout", BFP16_LAYOUTS, ids=str)
def test_bfp16_has_the_windows_and_caps_of_bf16(
    kernels: Path, layout: HeadLayout, context: int, queries: int, window: int, soft_cap: float
) -> None:
    problem, options = Problem(layout, context, queries, group=3), {"window": window, "soft_cap": soft_cap}
    found = problem.found(kernels, defines=BFP16, past=1.0, **options)
    assert mean_relative_error(found, problem.expected(**options)) <= PRECISIONS[Products.BFP16].mean_error


def test_a_product_in_bfp16_is_of_8_8_8_and_four_are_in_flight(kernels: Path) -> None:
    for layout in BFP16_LAYOUTS:
        problem = Problem(layout, 1024, queries=4, group=8)
        problem.found(kernels, defines=BFP16)
        products = 2 * 4 * 8 * layout.head_dim * problem.context
        assert sum(core.tile_products for core in problem.cores) * 8 * 8 * 8 == products
        for core in problem.cores:
            assert 3 / 17 < core.tile_products / core.tile_cycles <= 4 / 17


KERNELS = {"attention_begin", "attention_queries", "attention_chunk", "attention_strip"}
UNSET = ("HOST_IGNORES_SET_ROUNDING",)


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_every_kernel_that_rounds_sets_the_rounding(kernels: Path, layout: HeadLayout) -> None:
    problem = Problem(layout, 200, queries=3, spread=20.0)
    for soft_cap in (0.0, 20.0):
        problem.found(kernels, soft_cap=soft_cap)
        assert {name for core in problem.cores for name in core.rounded_down} == KERNELS
        assert not problem.rounded_down().total()
        problem.found(kernels, soft_cap=soft_cap, defines=UNSET)
        assert {name for name, count in problem.rounded_down().items() if count} == {
            "attention_chunk",
            "attention_strip",
        }


class Light:
    """Every query sees a key of score 0 and value 0, and one of a lower score and value 1, whose weight it gives.

    So nothing averages the rounding of weights out, nor do the sums of weights that they are divided by.
    """

    def __init__(self, layout: HeadLayout) -> None:
        rng = np.random.default_rng(0)
        self.problem = problem = Problem(layout, 257, queries=256)
        problem.q[:], problem.k[:], problem.v[:] = 0, 0, 0
        problem.q[:, :, 0] = to_bf16(-rng.uniform(1.5, 2.5, problem.q.shape[:2]))
        problem.k[1::2, :, 0] = to_bf16(rng.uniform(1.5, 2.5, problem.k[1::2, :, 0].shape))
        problem.v[1::2] = to_bf16(np.ones(1))

    def bias(self, kernels: Path, **options: Any) -> float:
        """The mean relative error, with its sign."""
        found, expected = self.problem.found(kernels, window=2, **options), self.problem.expected(window=2)
        return float(((found - expected) / expected).mean())


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_weights_are_rounded_without_a_bias_and_a_core_that_rounds_down_is_seen(
    kernels: Path, layout: HeadLayout
) -> None:
    light = Light(layout)
    assert abs(light.bias(kernels)) <= 3e-4
    assert light.bias(kernels, defines=UNSET) <= -1.5e-3
