"""Attention beside its reference in float64: batches, caches, windows, sinks, and the forms of results."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.config import KVDType
from unicorn_async.errors import ConfigError, UnsupportedModelError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.ops.attention_plan import MAX_FEW_TOKENS, AttentionPlan, DecodeCut
from unicorn_async.ops.kv_cache import AttentionShape, KVCache
from unicorn_async.ops.rows import BlockRows, RowForm
from unicorn_async.tensor import DType, Tensor

from .attention_case import FORMATS, MIXED, Query, Step, check, tolerance, with_cut
from .formed_rows import FORMS, FormedRows

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device

    from .arrays import Arrays

OTHER_PAIRS = pytest.mark.whole("cuts, windows and types of a cache, paired otherwise")


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


@pytest.mark.parametrize("form", [RowForm.HALVES, RowForm.BLOCKS])
def test_a_cache_in_int8_leaves_what_a_linear_reads_on_a_software_device_s_cut(
    device: Device, arrays: Arrays, form: RowForm
) -> None:
    step = Step(arrays, AttentionShape(4, 2, 128, 16, KVDType.INT8), MIXED)
    rows = FormedRows(arrays, form, *step.q.values.shape)
    step.run(device, arrays, out=rows.place)
    rows.check_unscaled(step.expected(), **tolerance(step.plan))


@pytest.mark.combinations("cuts whose numbers all occur in others")
@pytest.mark.parametrize(
    ("workgroup", "heads", "lanes", "unroll"),
    [(8, 4, 8, 1), (8, 2, 8, 4), (16, 2, 4, 2), (32, 1, 2, 1), (32, 1, 2, 8), (128, 4, 8, 1), (64, 8, 8, 1)],
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
    cut = DecodeCut(workgroup, subgroups, lanes=8, tile=plan.cut(1).tile, unroll=plan.cut(1).unroll)
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
    cut = DecodeCut(workgroup, -(-workgroup // device.info.min_subgroup_size), plan.lanes, 32, plan.cut(1).unroll)
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
    tile = plan.cut(1).tile
    plan, longest = with_cut(plan, plan.cut(1)), tile * plan.max_splits
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
    cut = DecodeCut(workgroup, subgroups, plan.lanes, 32, plan.cut(1).unroll)
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
