"""What a mixture's block dispatches in steps of different sizes, on devices that are not there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.golden.checkpoints import write_checkpoint
from tests.ops.test_linear_rules import GPU, MATRIX_GPU, MATRIX_RDNA
from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.memory.plan import attention_shape
from unicorn_async.models.blocks.expert_weights import DOWN, GATE_UP
from unicorn_async.models.spec import matrix_names
from unicorn_async.step.dry_run import DryRun

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.gpu.device_info import DeviceInfo

DISCRETE = replace(MATRIX_GPU, type=DeviceType.DISCRETE)


def block(tmp_path: Path, name: str, scheme: str, info: DeviceInfo, num_tokens: int) -> list[str]:
    """The kernels of a layer's mixture, without their weights' types, from the router's input on."""
    files = ModelFiles.read(str(write_checkpoint(name, tmp_path, "float16")), WeightScheme(scheme))
    run = DryRun(info, files.config, attention_shape(files.config, EngineConfig()), files.plan)
    names = [dispatch.request.name for dispatch in run.unique_layers(num_tokens)]
    layer = names[names.index("rms_norm_floats") + 1 :]
    found = layer[: next(i for i, kernel in enumerate(layer) if kernel.startswith("expert_") and "sum" in kernel) + 1]
    return [kernel.removesuffix("_q4").removesuffix("_f16") for kernel in found]


@pytest.mark.parametrize("info", [GPU, DISCRETE, MATRIX_RDNA], ids=["plain", "discrete", "rdna"])
def test_one_token_takes_four_dispatches(tmp_path: Path, info: DeviceInfo) -> None:
    found = block(tmp_path, "qwen3_moe", "int4", info, 1)
    assert found == ["quantize_activations", "router", "expert_quant_vec", "expert_quant_sum"]


def test_one_token_s_expert_for_all_tokens_takes_two_more(tmp_path: Path) -> None:
    found = block(tmp_path, "qwen2_moe", "int4", DISCRETE, 1)
    assert found == [
        "quantize_activations",
        "linear_vec_f32",
        "linear_quant_held",
        "route",
        "linear_quant_held",
        "expert_quant_vec",
        "expert_quant_sum",
    ]


@pytest.mark.parametrize(
    ("scheme", "kernel"), [("int4", "expert_quant_coopmat"), ("auto", "expert_coopmat")], ids=["int4", "f16"]
)
def test_a_prompt_s_rows_are_halves_for_matrix_units(tmp_path: Path, scheme: str, kernel: str) -> None:
    found = block(tmp_path, "qwen3_moe", scheme, DISCRETE, 513)
    halves = "row_to_half_halves"
    expected = [halves, "linear_few_rows_f32", "route", "expert_tiles", kernel, halves, kernel, "expert_sum"]
    assert found == expected


def test_a_prompt_s_rows_are_read_by_lanes_without_matrix_units(tmp_path: Path) -> None:
    found = block(tmp_path, "qwen3_moe", "int4", GPU, 512)
    assert found[4:] == ["expert_quant_vec", "quantize_activations", "expert_quant_vec", "expert_sum"]


def test_what_every_token_reads_is_not_the_experts(tmp_path: Path) -> None:
    files = ModelFiles.read(str(write_checkpoint("qwen2_moe", tmp_path, "float16")), WeightScheme("auto"))
    spec = files.config
    dests = {dest: dest for dest in spec.memory_groups()}
    left = dests.keys() - set(spec.read_by_all(dests))
    assert {dest.rpartition(".")[2] for dest in left} == {GATE_UP, DOWN}
    names = {name for layer in spec.layers for name in matrix_names(layer.blocks)}
    assert "qkv" in names and not {GATE_UP, DOWN} & names
