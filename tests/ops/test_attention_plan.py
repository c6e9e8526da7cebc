"""What attention chooses for a device: cuts, grids and kernels, and that results are right with a GPU's choice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from unicorn_async.config import KVDType
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.ops.attention_plan import MAX_FEW_TOKENS, AttentionPlan
from unicorn_async.ops.kv_cache import AttentionShape
from unicorn_async.ops.rows import RowForm
from unicorn_async.ops.subgroups import MATRIX_FEATURE, matrix_subgroup_size

from .attention_case import MIXED, Query, Step, check, tolerance, with_cut
from .formed_rows import FormedRows

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.device_info import DeviceInfo

    from .arrays import Arrays

LARGE_HEADS = pytest.mark.whole("that large heads, too, fit the registers and shared memory of a GPU's cut")
INT8_FORMS = pytest.mark.whole("halves, plain and in fragments, out of a cache in int8, too")
LARGE_GROUP = pytest.mark.whole("eight heads that share keys, in a GPU's cut")


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


@pytest.mark.combinations("every cut with every length")
@pytest.mark.parametrize("num_tokens", [1, MAX_FEW_TOKENS, MAX_FEW_TOKENS + 1])
@pytest.mark.parametrize("context", [1, 2, 31, 33, 127, 129, 1023, 4097, 16_385, 33_000])
def test_contexts_of_any_length_equal_the_reference_with_the_constants_of_a_gpu(
    device: Device, arrays: Arrays, context: int, num_tokens: int
) -> None:
    step = Step(arrays, AttentionShape(2, 1, 128, 16, KVDType.F16), [Query(context)])
    plan = AttentionPlan.of(replace(device.info, type=DeviceType.DISCRETE), step.shape)
    plan = with_cut(plan, plan.cut(num_tokens))
    check(step.run(device, arrays, plan=plan), step.expected(), step.plan)


@pytest.mark.parametrize("head_dim", [256, 512])
def test_a_decode_workgroup_fits_into_little_shared_memory(device: Device, head_dim: int) -> None:
    info = replace(device.info, type=DeviceType.INTEGRATED, max_shared_memory=16 << 10)
    shape = AttentionShape(16, 1, head_dim, 16, KVDType.F16)
    plan = AttentionPlan.of(info, shape)
    assert plan.cut(1).subgroups * plan.decode_heads * (shape.head_dim + 2) * 4 <= info.max_shared_memory


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


def as_large(info: DeviceInfo) -> DeviceInfo:
    """What a device would say of itself if it were an H100."""
    size = {"subgroup_size": 32, "min_subgroup_size": 32, "max_subgroup_size": 32}
    return replace(info, type=DeviceType.DISCRETE, compute_units=132, max_shared_memory=49152, **size)


@pytest.mark.parametrize(("heads", "head_dim"), [((32, 4), 128), ((16, 2), 256), ((64, 8), 64)])
def test_a_large_gpu_reads_contexts_by_lanes_with_room_for_what_is_under_way(
    device: Device, heads: tuple[int, int], head_dim: int
) -> None:
    plan = AttentionPlan.of(as_large(device.info), AttentionShape(*heads, head_dim, 16, KVDType.F16))
    rows = plan.decode_heads * head_dim // 8 // plan.lanes
    assert (rows, plan.lanes) == (4, 8 if head_dim == 64 else 16)
    assert {cut.unroll for _, cut in plan.cuts} == {4}


def test_a_large_gpu_cuts_contexts_by_how_many_there_are_and_how_long(device: Device) -> None:
    plan = AttentionPlan.of(as_large(device.info), AttentionShape(32, 4, 128, 16, KVDType.F16))
    splits = {n: [plan.decode_grid([context] * n, 0, n)[0] for context in (368, 4096, 32768)] for n in (1, 8, 32)}
    assert splits == {1: [6, 16, 64], 8: [6, 8, 16], 32: [1, 8, 64]}
    assert [plan.cut(n).workgroup for n in (1, 8, 32, 64)] == [256, 128, 256, 128]
    assert plan.decode_grid([1024, 1023], 0, 8)[0] == 16 > plan.decode_grid([1024], 0, 8)[0]  # of any of the contexts


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
        assert plan.subgroup == 32 and plan.cut(1).subgroups == 8
        bytewise = AttentionPlan.of(rdna, replace(shape, kv_dtype=KVDType.INT8))
        assert bytewise.decode_heads <= 2 and bytewise.cut(1).unroll * bytewise.decode_heads <= 4
        assert plan.cut(1).unroll * plan.decode_heads <= 8  # keys and heads that a lane has in its registers
        singles = AttentionPlan.of(rdna, replace(shape, kv_dtype=KVDType.F32))
        assert singles.cut(1).unroll == max(1, 4 // singles.decode_heads)  # keys of twice the size
        assert plan.decode_grid([100_000], 0, 1)[0] <= plan.max_splits


def test_a_device_that_can_not_quantise_the_cache_is_refused(device: Device) -> None:
    info = replace(device.info, min_subgroup_size=4)
    with pytest.raises(UnsupportedModelError, match="int8 needs subgroups of 8 lanes"):
        AttentionPlan.of(info, AttentionShape(2, 1, 64, 16, KVDType.INT8))
