from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unicorn_async.config import KVDType
from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.ops.attention_op import AttentionBatch, DecodeScratch
from unicorn_async.ops.attention_plan import MAX_FEW_TOKENS, AttentionPlan, DecodeCut
from unicorn_async.ops.kv_cache import AttentionShape, KVCache
from unicorn_async.ops.rows import BlockRows, RowForm
from unicorn_async.ops.subgroups import MATRIX_FEATURE, matrix_subgroup_size
from unicorn_async.tensor import DType, Tensor

from .far_blocks import far_blocks
from .formed_rows import FORMS, FormedRows
from .int8_cache import Int8Cache, dequantised, met, quantised

if TYPE_CHECKING:
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.ops.rows import Rows

    from .arrays import Array, Arrays

LARGE_HEADS = pytest.mark.whole("that large heads, too, fit the registers and shared memory of a GPU's cut")
OTHER_PAIRS = pytest.mark.whole("cuts, windows and types of a cache, paired otherwise")
INT8_FORMS = pytest.mark.whole("halves, plain and in fragments, out of a cache in int8, too")
LARGE_GROUP = pytest.mark.whole("eight heads that share keys, in a GPU's cut")
NOWHERE = 0xFFFFFFF0  # in a table, behind its blocks
FORMATS = {KVDType.F16: np.float16, KVDType.F32: np.float32}


@dataclass(frozen=True)
class Query:
    """One sequence of a step: tokens in all, and how many of them, the last ones, are queries."""

    context: int
    queries: int = 1


def with_cut(plan: AttentionPlan, cut: DecodeCut) -> AttentionPlan:
    """The plan with this cut for any step."""
    return replace(plan, few=cut, many=cut)


class Step:
    """A step's q, a cache whose dead places are poisoned, and the work lists."""

    def __init__(
        self,
        arrays: Arrays,
        shape: AttentionShape,
        sequences: list[Query],
        *,
        window: int = 0,
        seed: int = 0,
        has_sinks: bool = False,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.shape, self.sequences, self.window = shape, sequences, window
        self.starts = [3 + sum(s.queries for s in sequences[:i]) for i in range(len(sequences))]
        tokens = self.starts[-1] + sequences[-1].queries + 2
        self.k, self.v = (
            [rng.standard_normal((s.context, shape.num_kv_heads, shape.head_dim)) for s in sequences] for _ in "kv"
        )
        self.q = arrays.put(
            rng.standard_normal((tokens, shape.num_heads * shape.head_dim)).astype(np.float32)
            * 3
            / np.float32(shape.head_dim**0.5)
        )
        self.sinks = arrays.put(np.linspace(-4, 9, shape.num_heads, dtype=np.float32)) if has_sinks else None
        self.out = arrays.poisoned(*self.q.values.shape)
        self.max_blocks = max(-(-s.context // shape.block_size) for s in sequences) + 1
        self.k_cache, self.v_cache, self.table = self._fill(arrays, rng)
        self.cache, self.first_block = far_blocks(self.k_cache.address, self.v_cache.address, shape)
        self.table.values[self.table.values != NOWHERE] += self.first_block
        self.plan: AttentionPlan | None = None  # of the last run

    def first_live(self, sequence: Query) -> int:
        """The first key that any query of the sequence sees."""
        return max(0, sequence.context - sequence.queries + 1 - self.window) if self.window else 0

    def _fill(self, arrays: Arrays, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        shape, size = self.shape, self.shape.block_size
        num_blocks = len(self.sequences) * self.max_blocks
        free = list(rng.permutation(num_blocks))
        whole = (num_blocks, shape.num_kv_heads, size, shape.head_dim)
        is_int8 = shape.kv_dtype is KVDType.INT8
        bytewise = [Int8Cache(*whole) for _ in "kv"] if is_int8 else []
        caches = np.full((2, *whole), np.nan, FORMATS.get(shape.kv_dtype, np.float64))
        table = np.full((len(self.sequences), self.max_blocks), NOWHERE, np.uint32)
        for row, sequence in enumerate(self.sequences):
            for block in range(self.first_live(sequence) // size, -(-sequence.context // size)):
                table[row, block] = free.pop()
            for cache, values in zip(bytewise, (self.k[row], self.v[row]), strict=False):
                codes, scales = quantised(values)
                values[...] = dequantised(codes, scales)
                for token in range(self.first_live(sequence), sequence.context):
                    place = table[row, token // size], slice(None), token % size
                    cache.codes[place], cache.scales[place] = codes[token], scales[token]
            for token in range(self.first_live(sequence), sequence.context):
                caches[:, table[row, token // size], :, token % size] = self.k[row][token], self.v[row][token]
            for values in (self.k[row], self.v[row]):
                values[...] = values.astype(caches.dtype)
        memory = [cache.memory for cache in bytewise] or caches
        return arrays.put(memory[0]), arrays.put(memory[1]), arrays.put(table)

    def batch(self, arrays: Arrays, plan: AttentionPlan) -> AttentionBatch:
        def words(values: Any) -> int:
            return arrays.put(np.array(values if len(values) else [0], np.uint32)).address

        decode = [(row, self.starts[row]) for row, s in enumerate(self.sequences) if s.queries == 1]
        tiles = [
            (row, first)
            for row, s in enumerate(self.sequences)
            if s.queries > 1
            for first in range(0, s.queries, plan.query_tile)
        ]
        grid = plan.decode_grid([self.sequences[row].context for row, _ in decode], self.window, len(self.q.values))
        sizes = arrays.put(np.array([grid, plan.prefill_grid(len(tiles))], np.uint32))
        partials = arrays.poisoned(max(1, plan.partials_nbytes(len(decode)) // 4))
        self.counters = arrays.put(np.zeros(max(1, plan.split_counters_nbytes(len(decode)) // 4), np.uint32))
        return AttentionBatch(
            query_start=words(self.starts),
            query_len=words([s.queries for s in self.sequences]),
            context_len=words([s.context for s in self.sequences]),
            block_table=self.table.address,
            max_blocks=self.max_blocks,
            decode_items=words(decode),
            prefill_tiles=words(tiles),
            scratch=DecodeScratch(partials.address, self.counters.address),
            grids=sizes.buffer,
            decode_grid_offset=0,
            prefill_grid_offset=12,
        )

    def run(
        self,
        device: Device,
        arrays: Arrays,
        *,
        soft_cap: float = 0.0,
        info: DeviceInfo | None = None,
        plan: AttentionPlan | None = None,
        out: Rows | None = None,
        times: int = 1,
        **flags: bool,
    ) -> np.ndarray[Any, Any]:
        """The result, after as many layers of this one work."""
        attention = GpuAttention(info or device.info, device.kernels, self.shape, soft_cap=soft_cap)
        attention.plan = plan or attention.plan
        self.plan = attention.plan
        batch = replace(self.batch(arrays, attention.plan), **flags)

        def record(recorder: CommandRecorder) -> None:
            for _ in range(times):
                attention.record(
                    recorder,
                    q=self.q.tensor,
                    cache=self.cache,
                    window=self.window,
                    batch=batch,
                    out=out or self.out.tensor,
                    sinks=None if self.sinks is None else self.sinks.tensor,
                )
                recorder.barrier()

        arrays.run(record)
        assert not self.counters.values.any()
        return self.out.values

    def expected(self, *, soft_cap: float = 0.0) -> np.ndarray[Any, Any]:
        """The same in float64; NaN where there is no query."""
        shape = self.shape
        out = np.full((self.q.values.shape[0], shape.num_heads, shape.head_dim), np.nan)
        for row, sequence in enumerate(self.sequences):
            bytewise = shape.kv_dtype is KVDType.INT8 and sequence.queries == 1
            q = (met if bytewise else np.float64)(self.q.values.reshape(out.shape))
            for i in range(sequence.queries):
                position = sequence.context - sequence.queries + i
                first = max(0, position + 1 - self.window) if self.window else 0
                keys = np.repeat(self.k[row][first : position + 1], shape.group, axis=1)
                values = np.repeat(self.v[row][first : position + 1], shape.group, axis=1)
                scores = np.einsum("hd,khd->hk", q[self.starts[row] + i], keys)
                if soft_cap:
                    scores = soft_cap * np.tanh(scores / soft_cap)
                if self.sinks is not None:
                    scores = np.concatenate([scores, self.sinks.values[:, None].astype(np.float64)], axis=1)
                weights = np.exp(scores - scores.max(axis=1, keepdims=True))
                weights /= weights.sum(axis=1, keepdims=True)
                weights = weights[:, : len(values)]
                out[self.starts[row] + i] = np.einsum("hk,khd->hd", weights, values)
        return out.reshape(self.q.values.shape)


def tolerance(plan: AttentionPlan | None) -> dict[str, float]:
    """A plan says whether matrix units were in use, which take queries and probabilities as halves.

    They also take what a cache in int8 stands for as halves, where a cache in halves is exact.
    """
    if plan is None or plan.matrix_subgroup is None:
        return {"rtol": 1e-5, "atol": 4e-6}
    return {"rtol": 3e-3, "atol": 5e-3 if plan.shape.kv_dtype is KVDType.INT8 else 3e-3}


def check(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], plan: AttentionPlan | None = None) -> None:
    np.testing.assert_allclose(found, expected, **tolerance(plan))


MIXED = [Query(37), Query(61, 25), Query(1), Query(150), Query(18, 18), Query(90, 2), Query(16)]


@pytest.mark.combinations("every head size with every group, window and type of a cache: a pipeline each")
@pytest.mark.parametrize("kv_dtype", FORMATS)
@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("head_dim", [32, 64, 128, 256, 512])
def test_a_mixed_batch_equals_the_reference(
    device: Device, arrays: Arrays, head_dim: int, group: int, window: int, kv_dtype: KVDType
) -> None:
    step = Step(arrays, AttentionShape(group * 2, 2, head_dim, 16, kv_dtype), MIXED, window=window)
    check(step.run(device, arrays), step.expected(), step.plan)


@pytest.mark.combinations("every shape of heads with every size of blocks and window")
@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("block_size", [8, 64])
@pytest.mark.parametrize(("head_dim", "group"), [(64, 1), (128, 4), (192, 1), (256, 2), (512, 4)])
def test_a_cache_in_int8_equals_the_reference_of_what_it_holds(
    device: Device, arrays: Arrays, head_dim: int, group: int, block_size: int, window: int
) -> None:
    shape = AttentionShape(group * 2, 2, head_dim, block_size, KVDType.INT8)
    step = Step(arrays, shape, [*MIXED, Query(700)], window=window)
    check(step.run(device, arrays), step.expected(), step.plan)


@pytest.mark.parametrize(
    ("head_dim", "group", "form"),
    [
        (64, 2, RowForm.FLOATS),
        (64, 2, RowForm.BLOCKS),
        *(pytest.param(64, 2, form, marks=INT8_FORMS) for form in (RowForm.HALVES, RowForm.FRAGMENTS)),
        pytest.param(128, 2, RowForm.BLOCKS, marks=LARGE_HEADS),
        pytest.param(256, 2, RowForm.BLOCKS, marks=LARGE_HEADS),
    ],
)
def test_a_cache_in_int8_is_attended_with_the_constants_of_a_gpu(
    device: Device, arrays: Arrays, head_dim: int, group: int, form: RowForm
) -> None:
    info = replace(device.info, type=DeviceType.DISCRETE)
    step = Step(arrays, AttentionShape(group, 1, head_dim, 16, KVDType.INT8), [*MIXED, Query(1500)])
    if form is RowForm.FLOATS:
        check(step.run(device, arrays, info=info), step.expected(), step.plan)
        return
    rows = FormedRows(arrays, form, *step.q.values.shape)
    step.run(device, arrays, info=info, out=rows.place)
    rows.check_unscaled(step.expected(), **tolerance(step.plan))


@pytest.mark.parametrize("form", [RowForm.HALVES, RowForm.BLOCKS])
def test_a_cache_in_int8_leaves_what_a_linear_reads_on_a_software_device_s_cut(
    device: Device, arrays: Arrays, form: RowForm
) -> None:
    step = Step(arrays, AttentionShape(4, 2, 128, 16, KVDType.INT8), MIXED)
    rows = FormedRows(arrays, form, *step.q.values.shape)
    step.run(device, arrays, out=rows.place)
    rows.check_unscaled(step.expected(), **tolerance(step.plan))


@pytest.mark.parametrize(
    ("head_dim", "group"),
    [
        pytest.param(32, 8, marks=LARGE_GROUP),
        (64, 2),
        (96, 3),
        *(pytest.param(size, 4, marks=LARGE_HEADS) for size in (128, 256)),
        (512, 8),
    ],
)
def test_the_constants_of_a_gpu_equal_the_reference(device: Device, arrays: Arrays, head_dim: int, group: int) -> None:
    info = replace(device.info, type=DeviceType.DISCRETE)
    step = Step(arrays, AttentionShape(group, 1, head_dim, 16, KVDType.F16), [*MIXED, Query(700)])
    check(step.run(device, arrays, info=info), step.expected(), step.plan)


@pytest.mark.combinations("either cut with every length")
@pytest.mark.parametrize("cut", ["few", "many"])
@pytest.mark.parametrize("context", [1, 2, 31, 33, 127, 129, 1023, 4097, 16_385, 33_000])
def test_contexts_of_any_length_equal_the_reference_with_the_constants_of_a_gpu(
    device: Device, arrays: Arrays, context: int, cut: str
) -> None:
    step = Step(arrays, AttentionShape(2, 1, 128, 16, KVDType.F16), [Query(context)])
    plan = AttentionPlan.of(replace(device.info, type=DeviceType.DISCRETE), step.shape)
    plan = with_cut(plan, plan.few if cut == "few" else plan.many)
    check(step.run(device, arrays, plan=plan), step.expected(), step.plan)


@pytest.mark.combinations("cuts whose numbers all occur in others")
@pytest.mark.parametrize(
    ("workgroup", "heads", "lanes", "unroll"),
    [(8, 4, 8, 1), (8, 4, 8, 8), (16, 2, 4, 2), (32, 1, 2, 1), (32, 1, 2, 8), (128, 4, 8, 1), (64, 8, 8, 2)],
)
def test_other_cuts_of_decode_equal_the_reference(
    device: Device, arrays: Arrays, workgroup: int, heads: int, lanes: int, unroll: int
) -> None:
    step = Step(arrays, AttentionShape(16, 2, 64, 16, KVDType.F16), [Query(1), Query(700), Query(2500)])
    plan = AttentionPlan.of(device.info, step.shape)
    subgroups = -(-workgroup // device.info.min_subgroup_size)
    plan = replace(
        with_cut(plan, DecodeCut(workgroup, subgroups, lanes, 64, unroll)), decode_heads=heads, max_splits=20
    )
    check(step.run(device, arrays, plan=plan), step.expected(), step.plan)


@pytest.mark.parametrize("head_dim", [256, 512])
def test_a_decode_workgroup_fits_into_little_shared_memory(device: Device, head_dim: int) -> None:
    info = replace(device.info, type=DeviceType.INTEGRATED, max_shared_memory=16 << 10)
    shape = AttentionShape(16, 1, head_dim, 16, KVDType.F16)
    plan = AttentionPlan.of(info, shape)
    assert plan.few.subgroups * plan.decode_heads * (shape.head_dim + 2) * 4 <= info.max_shared_memory


@pytest.mark.combinations("every form out of every shape of heads")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("head_dim", "num_heads", "as_gpu"),
    [(32, 8, False), (64, 4, False), (128, 6, True), (256, 4, False), (512, 8, True)],
)
def test_the_result_has_the_form_that_a_linear_reads(
    device: Device, arrays: Arrays, head_dim: int, num_heads: int, as_gpu: bool, form: RowForm
) -> None:
    info = replace(device.info, type=DeviceType.DISCRETE) if as_gpu else device.info
    sequences = [*MIXED, Query(1500)]  # one with several splits
    step = Step(arrays, AttentionShape(num_heads, 2, head_dim, 16, KVDType.F16), sequences)
    rows = FormedRows(arrays, form, *step.q.values.shape)
    step.run(device, arrays, info=info, out=rows.place)
    rows.check_unscaled(step.expected(), **tolerance(step.plan))


@pytest.mark.parametrize("workgroup", [8, 32])
def test_a_cut_of_decode_leaves_blocks_whether_or_not_subgroups_share_it(
    device: Device, arrays: Arrays, workgroup: int
) -> None:
    step = Step(arrays, AttentionShape(8, 2, 128, 16, KVDType.F16), [Query(1), Query(50), Query(700)])
    subgroups = -(-workgroup // device.info.min_subgroup_size)
    plan = AttentionPlan.of(device.info, step.shape)
    cut = DecodeCut(workgroup, subgroups, lanes=8, tile=plan.few.tile, unroll=plan.few.unroll)
    plan = replace(with_cut(plan, cut), decode_heads=2)
    rows = FormedRows(arrays, RowForm.BLOCKS, *step.q.values.shape)
    step.run(device, arrays, plan=plan, out=rows.place)
    rows.check_unscaled(step.expected(), **tolerance(None))


@pytest.mark.parametrize("size", [65504.0, 1e-7])
def test_values_at_the_ends_of_half_precision_survive_in_halves(device: Device, arrays: Arrays, size: float) -> None:
    step = Step(arrays, AttentionShape(2, 1, 64, 16, KVDType.F16), [Query(40), Query(30, 20)])
    for row, values in enumerate(step.v):
        values[...] = np.float64(np.sign(values) * size).astype(np.float16)
        for token in range(len(values)):
            step.v_cache.values[step.table.values[row, token // 16] - step.first_block, :, token % 16] = values[token]
    rows = FormedRows(arrays, RowForm.HALVES, *step.q.values.shape)
    step.run(device, arrays, out=rows.place)
    rows.check_unscaled(step.expected(), rtol=3e-3, atol=3e-3 * size)


def test_forms_that_a_cache_or_a_head_does_not_allow_are_refused(device: Device, arrays: Arrays) -> None:
    floats = GpuAttention(device.info, device.kernels, AttentionShape(2, 1, 64, 16, KVDType.F32))
    odd = GpuAttention(device.info, device.kernels, AttentionShape(2, 1, 40, 16, KVDType.F16))
    assert [form for form in RowForm if floats.writes(form)] == [RowForm.FLOATS, RowForm.BLOCKS]
    assert [form for form in RowForm if not odd.writes(form)] == [RowForm.BLOCKS]
    step = Step(arrays, odd.plan.shape, [Query(9)])
    with pytest.raises(UnsupportedModelError, match="blocks of heads of 40"):
        step.run(device, arrays, out=BlockRows(0, 0))


@pytest.mark.parametrize("window", [0, 20])
def test_scores_are_capped_softly(device: Device, arrays: Arrays, window: int) -> None:
    step = Step(arrays, AttentionShape(4, 2, 64, 16, KVDType.F16), MIXED, window=window)
    check(step.run(device, arrays, soft_cap=1.5), step.expected(soft_cap=1.5), step.plan)


@pytest.mark.parametrize(
    ("kv_dtype", "window", "as_gpu"),
    [(KVDType.F16, 0, False), (KVDType.F16, 128, True), (KVDType.INT8, 20, False)],
)
def test_sinks_take_their_part_of_a_softmax_however_it_is_cut(
    device: Device, arrays: Arrays, kv_dtype: KVDType, window: int, as_gpu: bool
) -> None:
    info = replace(device.info, type=DeviceType.DISCRETE) if as_gpu else device.info
    sequences = [*MIXED, Query(700), Query(300, 200)]
    step = Step(arrays, AttentionShape(8, 2, 64, 16, kv_dtype), sequences, window=window, has_sinks=True)
    check(step.run(device, arrays, info=info), step.expected(), step.plan)


@pytest.mark.parametrize("workgroup", [8, 128])
def test_splits_are_joined_with_a_sink_once(device: Device, arrays: Arrays, workgroup: int) -> None:
    step = Step(arrays, AttentionShape(8, 2, 64, 16, KVDType.F16), [Query(c) for c in (1, 1311, 65)], has_sinks=True)
    plan = AttentionPlan.of(device.info, step.shape)
    cut = DecodeCut(workgroup, -(-workgroup // device.info.min_subgroup_size), plan.few.lanes, 32, plan.few.unroll)
    plan = replace(with_cut(plan, cut), decode_heads=2, max_splits=40)
    check(step.run(device, arrays, plan=plan, times=2), step.expected(), step.plan)


@pytest.mark.parametrize(("sink", "share"), [(-np.inf, 1.0), (-3e38, 1.0), (300.0, 0.0), (3e38, 0.0)])
def test_a_sink_of_great_magnitude_leaves_all_or_nothing(
    device: Device, arrays: Arrays, sink: float, share: float
) -> None:
    step = Step(arrays, AttentionShape(2, 1, 64, 16, KVDType.F16), [Query(100), Query(70, 40)], has_sinks=True)
    assert step.sinks is not None
    step.sinks.values[...] = -np.inf
    expected = step.expected() * share
    step.sinks.values[...] = sink
    check(step.run(device, arrays), expected, step.plan)


@pytest.mark.parametrize(
    ("head_dim", "num_heads", "num_kv_heads", "block_size"),
    [(40, 3, 1, 8), (80, 7, 1, 32), (96, 6, 2, 64), (64, 20, 1, 16), (64, 14, 2, 8)],
)
def test_odd_shapes_equal_the_reference(
    device: Device, arrays: Arrays, head_dim: int, num_heads: int, num_kv_heads: int, block_size: int
) -> None:
    shape = AttentionShape(num_heads, num_kv_heads, head_dim, block_size, KVDType.F16)
    step = Step(arrays, shape, MIXED)
    check(step.run(device, arrays), step.expected(), step.plan)


@pytest.mark.parametrize("window", [0, 700])
def test_contexts_of_several_tiles_per_split_are_joined(device: Device, arrays: Arrays, window: int) -> None:
    shape = AttentionShape(2, 1, 32, 16, KVDType.F16)
    plan = AttentionPlan.of(device.info, shape)
    tile = plan.few.tile
    plan, longest = with_cut(plan, plan.few), tile * plan.max_splits
    sequences = [Query(longest + 5), Query(3), Query(longest), Query(2 * longest + 77), Query(tile + 1)]
    step = Step(arrays, shape, sequences, window=window)
    check(step.run(device, arrays, plan=plan), step.expected(), step.plan)


@pytest.mark.parametrize(
    ("workgroup", "heads", "max_splits", "window", "kv_dtype"),
    [
        pytest.param(8, 1, 8, 0, KVDType.F16, marks=OTHER_PAIRS),
        (8, 1, 8, 500, KVDType.INT8),
        pytest.param(8, 4, 128, 500, KVDType.F32, marks=OTHER_PAIRS),
        (64, 2, 100, 0, KVDType.F32),
        pytest.param(64, 2, 100, 500, KVDType.F16, marks=OTHER_PAIRS),
        pytest.param(128, 4, 40, 0, KVDType.INT8, marks=OTHER_PAIRS),
        (128, 4, 40, 500, KVDType.F16),
    ],
)
def test_items_with_few_and_many_splits_are_joined_in_one_dispatch_again_and_again(
    device: Device, arrays: Arrays, workgroup: int, heads: int, max_splits: int, window: int, kv_dtype: KVDType
) -> None:
    shape = AttentionShape(8, 2, 64, 16, kv_dtype)
    step = Step(arrays, shape, [Query(c) for c in (1, 1311, 64, 65, 700, 32, 33)], window=window)
    plan = AttentionPlan.of(device.info, shape)
    subgroups = -(-workgroup // device.info.min_subgroup_size)
    cut = DecodeCut(workgroup, subgroups, plan.few.lanes, 32, plan.few.unroll)
    plan = replace(with_cut(plan, cut), decode_heads=heads, max_splits=max_splits)
    check(step.run(device, arrays, plan=plan, times=3), step.expected(), step.plan)


def test_scores_of_great_magnitude_do_not_overflow(device: Device, arrays: Arrays) -> None:
    step = Step(arrays, AttentionShape(2, 1, 64, 16, KVDType.F16), [Query(100), Query(70, 40)])
    step.q.values[...] *= 1e4
    found, expected = step.run(device, arrays), step.expected()
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    close = np.isclose(found, expected, rtol=1e-2, atol=1e-2) | np.isnan(expected)
    assert close.mean() > 0.99  # two keys that all but tie may change places


@pytest.mark.parametrize("others", [[Query(1500), Query(40, 15)], [Query(1500)]])
def test_a_result_does_not_depend_on_the_batch_among_steps_that_are_cut_alike(
    device: Device, arrays: Arrays, others: list[Query]
) -> None:
    shape = AttentionShape(4, 2, 64, 16, KVDType.F16)
    alone = Step(arrays, shape, [Query(150)])
    found_alone = alone.run(device, arrays)
    together = Step(arrays, shape, [Query(150), *others])
    assert together.q.values.shape[0] <= MAX_FEW_TOKENS
    together.q.values[3] = alone.q.values[3]
    for cache, values in ((together.k_cache, alone.k), (together.v_cache, alone.v)):
        for token in range(150):
            cache.values[together.table.values[0, token // 16] - together.first_block, :, token % 16] = values[0][token]
    np.testing.assert_array_equal(together.run(device, arrays)[3], found_alone[3])


def test_parts_that_are_left_out_are_not_recorded(device: Device, arrays: Arrays) -> None:
    shape = AttentionShape(2, 1, 32, 16, KVDType.F16)
    step = Step(arrays, shape, [Query(40, 20), Query(9)])
    expected = step.expected()
    found = step.run(device, arrays, has_prefill=False).copy()
    check(found[23], expected[23])
    assert np.isnan(np.delete(found, 23, axis=0)).all()
    found = step.run(device, arrays, has_decode=False)
    check(found, expected, step.plan)


def test_prefill_runs_on_matrix_units_where_the_device_has_them(device: Device) -> None:
    halves, floats = (AttentionShape(4, 2, 128, 16, dtype) for dtype in (KVDType.F16, KVDType.F32))
    info = replace(
        device.info,
        type=DeviceType.DISCRETE,
        subgroup_size=32,
        min_subgroup_size=32,
        max_subgroup_size=32,
        max_shared_memory=49152,
        features=frozenset({"float16", MATRIX_FEATURE, "subgroup_size_control"}),
    )
    name = GpuAttention(info, device.kernels, halves).kernels_for()[1].name
    assert name == "attention_prefill_coopmat_f16_floats"
    assert GpuAttention(info, device.kernels, floats).kernels_for()[1].name == "attention_prefill_f32_floats"
    bytewise = AttentionShape(4, 2, 128, 16, KVDType.INT8)
    name = GpuAttention(info, device.kernels, bytewise).kernels_for()[1].name
    assert name == "attention_prefill_coopmat_int8_floats"
    odd = AttentionShape(4, 2, 40, 16, KVDType.F16)
    assert GpuAttention(info, device.kernels, odd).kernels_for()[1].name == "attention_prefill_f16_floats"


def test_grids_cover_the_work_and_are_empty_without_it(device: Device) -> None:
    shape = AttentionShape(8, 2, 64, 16, KVDType.F16)
    plan = AttentionPlan.of(device.info, shape)
    groups = shape.num_heads // plan.decode_heads
    assert plan.prefill_grid(0) == (0, 0, 0)
    for num_tokens in (1, MAX_FEW_TOKENS, MAX_FEW_TOKENS + 1, 64):
        tile = plan.cut(num_tokens).tile
        assert plan.decode_grid([], 0, num_tokens) == (0, 0, 0)
        assert plan.decode_grid([1, tile], 0, num_tokens) == (1, groups, 2)
        assert plan.decode_grid([5, tile + 1], 0, num_tokens) == (2, groups, 2)
        assert plan.decode_grid([10 * tile], tile, num_tokens) == (1, groups, 1)
        for context in (1, 63, 64, 65, 1000, 131072):
            assert 1 <= plan.num_splits(context, 0, num_tokens) <= plan.max_splits


def test_steps_of_many_sequences_cut_contexts_less(device: Device) -> None:
    plan = AttentionPlan.of(
        replace(device.info, type=DeviceType.DISCRETE), AttentionShape(32, 16, 128, 16, KVDType.F16)
    )
    assert [plan.decode_grid([320] * n, 0, n)[0] for n in (1, MAX_FEW_TOKENS, MAX_FEW_TOKENS + 1, 64)] == [5, 5, 1, 1]
    assert plan.cut(64).lanes == plan.cut(1).lanes  # sums of a key's products are the same, whoever it is fetched with


def as_rdna(info: DeviceInfo) -> DeviceInfo:
    """What a device would say of itself if it were a Radeon 780M."""
    return replace(
        info,
        type=DeviceType.INTEGRATED,
        subgroup_size=64,
        min_subgroup_size=32,
        max_subgroup_size=64,
        compute_units=12,
        max_shared_memory=65536,
    )


@pytest.mark.parametrize("form", [RowForm.FLOATS, RowForm.BLOCKS, RowForm.HALVES])
@pytest.mark.parametrize("kv_dtype", [KVDType.F16, KVDType.INT8])
@pytest.mark.parametrize(("head_dim", "group"), [(64, 4), (128, 2), (192, 1), (256, 2), (256, 4)])
def test_the_constants_of_rdna_equal_the_reference(
    device: Device, arrays: Arrays, head_dim: int, group: int, kv_dtype: KVDType, form: RowForm
) -> None:
    if device.info.subgroup_size != 32 or matrix_subgroup_size(device.info) is None:
        pytest.skip(f"{device.info.name} has no matrices in subgroups of 32 lanes, for which the constants are")
    info = replace(as_rdna(device.info), max_shared_memory=min(65536, device.info.max_shared_memory))
    step = Step(arrays, AttentionShape(group * 2, 2, head_dim, 16, kv_dtype), [*MIXED, Query(700), Query(700, 70)])
    if form is RowForm.FLOATS:
        check(step.run(device, arrays, info=info), step.expected(), step.plan)
    else:
        rows = FormedRows(arrays, form, *step.q.values.shape)
        step.run(device, arrays, info=info, out=rows.place)
        rows.check_unscaled(step.expected(), **tolerance(step.plan))
    assert step.plan is not None and step.plan.matrix_shares == (2 if head_dim > 128 else 1)


def test_rdna_gives_rows_of_large_heads_to_two_subgroups(device: Device) -> None:
    features = frozenset({"float16", MATRIX_FEATURE, "subgroup_size_control"})
    rdna = replace(as_rdna(device.info), features=features)
    for head_dim, shares in ((64, 1), (128, 1), (160, 1), (192, 2), (256, 2)):
        attention = GpuAttention(rdna, device.kernels, AttentionShape(8, 4, head_dim, 16, KVDType.F16))
        request = attention.kernels_for()[1]
        assert request.name == "attention_prefill_coopmat_f16_floats" and request.subgroup_size == 32
        assert request.constants.get("SHARES", 1) == shares
        assert attention.plan.query_tile * attention.plan.prefill_heads == 64 // shares
    other = replace(rdna, subgroup_size=32, max_subgroup_size=32)
    assert AttentionPlan.of(other, AttentionShape(8, 4, 256, 16, KVDType.F16)).matrix_shares == 1


def test_rdna_reads_a_context_for_as_many_query_heads_as_its_driver_has_registers_for(device: Device) -> None:
    features = frozenset({"float16", "subgroup_size_control"})
    old = replace(as_rdna(device.info), features=features)
    new = replace(old, features=features | {MATRIX_FEATURE})
    for head_dim, group, kv_dtype, before, now in (
        (128, 8, KVDType.F16, 4, 8),
        (64, 7, KVDType.F16, 1, 7),
        (256, 6, KVDType.F16, 3, 6),
        (256, 8, KVDType.F16, 4, 4),
        (128, 8, KVDType.INT8, 2, 4),
        (256, 4, KVDType.INT8, 2, 4),
        (512, 8, KVDType.F16, 2, 2),
    ):
        shape = AttentionShape(2 * group, 2, head_dim, 16, kv_dtype)
        plans = AttentionPlan.of(old, shape), AttentionPlan.of(new, shape)
        assert [plan.decode_heads for plan in plans] == [before, now]


def test_rdna_shares_a_context_among_as_many_workgroups_as_its_units_hold(device: Device) -> None:
    rdna = replace(as_rdna(device.info), features=frozenset({"float16", "subgroup_size_control"}))
    for heads, kv_heads in ((32, 16), (32, 8), (16, 8), (4, 1)):
        shape = AttentionShape(heads, kv_heads, 128, 16, KVDType.F16)
        plan = AttentionPlan.of(rdna, shape)
        workgroups = heads // plan.decode_heads
        assert plan.max_splits == max(16, 96 // workgroups)
        assert plan.subgroup == 32 and plan.few.subgroups == 8
        bytewise = AttentionPlan.of(rdna, replace(shape, kv_dtype=KVDType.INT8))
        assert bytewise.decode_heads <= 2 and bytewise.few.unroll * bytewise.decode_heads <= 4
        assert plan.few.unroll * plan.decode_heads <= 8  # keys and heads that a lane has in its registers
        assert plan.decode_grid([100_000], 0, 1)[0] <= plan.max_splits


def test_a_device_that_can_not_quantise_the_cache_is_refused(device: Device) -> None:
    info = replace(device.info, min_subgroup_size=4)
    with pytest.raises(UnsupportedModelError, match="int8 needs subgroups of 8 lanes"):
        AttentionPlan.of(info, AttentionShape(2, 1, 64, 16, KVDType.INT8))


def test_operands_of_other_shapes_are_refused(device: Device, arrays: Arrays) -> None:
    shape = AttentionShape(2, 1, 32, 16, KVDType.F16)
    step = Step(arrays, shape, [Query(9)])
    attention = GpuAttention(device.info, device.kernels, shape)
    batch = step.batch(arrays, attention.plan)
    wrong = Tensor(step.q.address, (1, 32), DType.F32)
    with pytest.raises(ConfigError, match=r"out: expected .*64"):
        arrays.run(
            lambda rec: attention.record(rec, q=step.q.tensor, cache=KVCache(0, 0), window=0, batch=batch, out=wrong)
        )
