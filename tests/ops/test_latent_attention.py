"""Attention whose values are the first elements of its keys: each cut beside its reference in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from unicorn_async.config import KVDType
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.ops.attention import GpuAttention
from unicorn_async.ops.attention_plan import AttentionPlan, DecodeCut
from unicorn_async.ops.kv_cache import AttentionShape
from unicorn_async.ops.rows import RowForm

from .attention_case import Query, Step, check, with_cut

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device

    from .arrays import Arrays


def latent_shape(num_heads: int, latent: int, rotary: int, kv_dtype: KVDType = KVDType.F16) -> AttentionShape:
    return AttentionShape(num_heads, 1, latent + rotary, 16, kv_dtype, latent)


@pytest.mark.parametrize(
    ("num_heads", "latent", "rotary", "kv_dtype"),
    [
        (16, 512, 64, KVDType.F32),  # DeepSeek V2-Lite
        (32, 256, 64, KVDType.INT8),  # Mistral Small 4
        (3, 40, 8, KVDType.F16),
    ],
)
def test_values_are_the_first_elements_of_keys(
    device: Device, arrays: Arrays, num_heads: int, latent: int, rotary: int, kv_dtype: KVDType
) -> None:
    step = Step(arrays, latent_shape(num_heads, latent, rotary, kv_dtype), [Query(61, 25), Query(150), Query(1)])
    check(step.run(device, arrays), step.expected(), step.plan)


def test_the_constants_of_a_gpu_take_latents(device: Device, arrays: Arrays) -> None:
    info = replace(device.info, type=DeviceType.DISCRETE)
    step = Step(arrays, latent_shape(20, 256, 64), [Query(700), Query(18, 18)])
    plan = AttentionPlan.of(info, step.shape)
    cut = replace(plan.cut(2), workgroup=2 * info.max_subgroup_size, subgroups=2)  # more have no room in 32 KiB
    plan = replace(with_cut(plan, cut), decode_heads=2)  # as in subgroups of 16
    check(step.run(device, arrays, info=info, plan=plan), step.expected(), step.plan)


@pytest.mark.parametrize(("kv_dtype", "workgroup"), [(KVDType.F16, 8), (KVDType.INT8, 32)])
def test_some_lanes_have_a_part_of_a_key_more_than_others(
    device: Device, arrays: Arrays, kv_dtype: KVDType, workgroup: int
) -> None:
    lanes, step = 8, Step(arrays, latent_shape(4, 256, 64, kv_dtype), [Query(1), Query(700), Query(90)])
    assert (step.shape.head_dim - step.shape.latent_dim) // 16 % lanes
    plan = AttentionPlan.of(device.info, step.shape)
    cut = DecodeCut(workgroup, -(-workgroup // device.info.min_subgroup_size), lanes, 64, 2)
    plan = replace(with_cut(plan, cut), decode_heads=2, max_splits=20)
    check(step.run(device, arrays, plan=plan, times=2), step.expected(), step.plan)


def test_results_are_floats_alone(device: Device) -> None:
    attention = GpuAttention(device.info, device.kernels, latent_shape(2, 64, 32))
    assert [form for form in RowForm if attention.writes(form)] == [RowForm.FLOATS]


def test_a_token_takes_one_key_in_the_cache() -> None:
    assert latent_shape(20, 512, 64).token_nbytes == 1152
    assert AttentionShape(20, 20, 256, 16, KVDType.F16).token_nbytes == 20480


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 1, 584, 16, KVDType.F16, 512), "head_dim: expected a multiple of 8 from 32 to 576, got 584"),
        ((2, 1, 96, 16, KVDType.F16, 60), "latent: expected a multiple of 8 from 32 to 96 .* got 60"),
        ((2, 1, 128, 16, KVDType.INT8, 72), "latent: expected a multiple of 32 from 32 to 128 .* int8, got 72"),
        ((2, 2, 96, 16, KVDType.F16, 64), "got 64 in 2"),
    ],
)
def test_latents_that_no_kernel_takes_are_refused(shape: tuple[int, int, int, int, KVDType, int], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        AttentionShape(*shape)
