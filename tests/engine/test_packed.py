"""Checkpoints that are published quantised: their logits are those of the weights that they stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.golden.cases import CASES
from tests.golden.checkpoints import golden
from tests.ops.test_linear_rules import GPU
from unicorn_async.cli.tensor_rows import tensor_rows
from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.memory.plan import attention_shape
from unicorn_async.step.dry_run import DryRun

from .packed_files import awq, compressed, fp8, gptq, write_packed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.conftest import OpenEngine

    from .packed_files import Pack

ACTIVATIONS = 0.03  # root of a token's mean squared error in deviations, of activations in blocks of int8
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
BLOCKS = {**FP8, "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.down_proj"]}
SMALL = {**FP8, "weight_block_size": [32, 64]}  # so that heads whose rows change their order have several
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}
GPTQ = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 64,
    "sym": True,
    "desc_act": False,
    "checkpoint_format": "gptq",
}
ACT_ORDER = {**GPTQ, "group_size": 32, "desc_act": True}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4}},
    "ignore": ["lm_head"],
}
KEPT = ("layers.0.mlp.down_proj",)


@pytest.mark.parametrize(
    ("name", "settings", "pack", "kernel"),
    [
        ("llama", BLOCKS, fp8(128, 128), "linear_quant_vec_f8"),
        ("glm4_moe", SMALL, fp8(32, 64, scale_type="bfloat16"), "expert_quant_vec_f8"),
        ("llama", AWQ, awq(64), "linear_quant_vec_uint4"),
        pytest.param("llama", GPTQ, gptq(4, 64), "linear_quant_vec_q4", marks=pytest.mark.whole("GPTQ's logits, too")),
        ("llama", COMPRESSED, compressed(4, 32, symmetric=False), "linear_quant_vec_uint4"),
        ("llama", ACT_ORDER, gptq(4, 32, act_order=True), "linear_quant_vec_q4"),
        pytest.param(
            "qwen2",
            {**ACT_ORDER, "bits": 8},
            gptq(8, 32, act_order=True),
            "linear_quant_vec_q8",
            marks=pytest.mark.whole("biases and 8 bits beside columns in an order"),
        ),
    ],
    ids=["fp8-blocks", "fp8-experts", "awq", "gptq", "compressed", "act-order", "act-order-8"],
)
async def test_logits_are_those_of_the_weights_that_are_meant(
    tmp_path: Path, open_engine: OpenEngine, name: str, settings: dict[str, object], pack: Pack, kernel: str
) -> None:
    reference = golden(name)
    is_sorted = settings.get("desc_act") is True
    prompts = reference.prompts[0 if is_sorted else 1 : 3]  # the first has one token
    packed, dense = write_packed(name, tmp_path, settings, pack, kept=KEPT)
    async with open_engine(dense) as engine:
        right = [await engine.logits(prompt) for prompt in prompts]
    async with open_engine(packed) as engine:
        found = [await engine.logits(prompt) for prompt in prompts]
        await engine.loaded()
        kernels = {name.split("[")[0] for name in engine.kernels}
        assert kernel in kernels and ("gather_columns" in kernels) == is_sorted
    differences = np.concatenate(found) - np.concatenate(right)
    errors = np.sqrt(np.mean(differences**2, axis=1)) / reference.deviation
    assert np.quantile(errors, 0.95) <= ACTIVATIONS  # others may take other experts where two weigh alike


@pytest.mark.parametrize(
    ("name", "settings", "pack", "kernels", "most"),
    [
        ("glm4_moe_lite", SMALL, fp8(32, 64), {"expert_vec_f16", "expert_quant_vec_f8"}, 0.01),
        pytest.param(
            "deepseek_v2_lite",
            COMPRESSED,
            compressed(4, 32, symmetric=False),
            {"expert_vec_f16", "expert_quant_vec_uint4"},
            ACTIVATIONS,
            marks=pytest.mark.whole("blocks of int8 beside latents"),
        ),
    ],
    ids=["fp8", "int4"],
)
async def test_matrices_of_latents_are_taken_apart(
    tmp_path: Path,
    open_engine: OpenEngine,
    name: str,
    settings: dict[str, object],
    pack: Pack,
    kernels: set[str],
    most: float,
) -> None:
    reference = golden(name)
    packed, dense = write_packed(name, tmp_path, settings, pack, kept=("q_", "kv_a_", "o_proj", "mlp"))
    async with open_engine(dense) as engine:
        right = await engine.logits(reference.prompts[1])
    async with open_engine(packed) as engine:
        found = await engine.logits(reference.prompts[1])
        await engine.loaded()
        assert kernels <= {name.split("[")[0] for name in engine.kernels}
    errors = np.sqrt(np.mean((found - right) ** 2, axis=1)) / reference.deviation
    assert np.quantile(errors, 0.95) <= most
    rows = {row.destination.removeprefix("layers.0."): row for row in tensor_rows(ModelFiles.read(packed))}
    keys, values = rows["k_b"], rows["v_b"]
    assert keys.transform == f"{keys.dtype} to F16, rows reordered" and keys.device_dtype == "F16"
    assert values.device_dtype == values.dtype and values.transform.startswith("re-layout of ")


async def test_experts_in_one_tensor_have_scales_in_one(
    tmp_path: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Mistral Small 4 is published, here with blocks of scales."""
    narrow = CASES["mistral4"]
    monkeypatch.setitem(CASES, "wide", replace(narrow, name="wide", config={**narrow.config, "hidden_size": 128}))
    packed, dense = write_packed("wide", tmp_path, SMALL, fp8(32, 64), kept=("q_b_proj",), stacks=(32, 64))
    prompt = golden("mistral4").prompts[1]
    async with open_engine(dense) as engine:
        right = await engine.logits(prompt)
    async with open_engine(packed) as engine:
        found = await engine.logits(prompt)
        await engine.loaded()
        assert "expert_quant_vec_f8" in {name.split("[")[0] for name in engine.kernels}
    errors = np.sqrt(np.mean((found - right) ** 2, axis=1)) / right.std()
    assert np.quantile(errors, 0.95) <= ACTIVATIONS


def test_only_what_reads_columns_in_an_order_has_them_gathered(tmp_path: Path) -> None:
    packed, _ = write_packed("llama", tmp_path, ACT_ORDER, gptq(4, 32, act_order=True), kept=KEPT)
    files = ModelFiles.read(packed)
    orders = {dest.name: dest.shape for dest in files.plan.destinations if dest.is_order}
    first = {"layers.0.qkv_order": (128,), "layers.0.o_order": (128,), "layers.0.gate_up_order": (128,)}
    assert orders.items() >= first.items() and "layers.0.down_order" not in orders  # it is kept dense
    assert orders["layers.1.down_order"] == (192,)
    rows = {row.name: row for row in tensor_rows(files)}
    assert rows["model.layers.1.mlp.down_proj.qweight"].transform.endswith("columns sorted by group")
    plain, _ = write_packed("llama", tmp_path / "plain", {**ACT_ORDER, "desc_act": False}, gptq(4, 32))
    assert not any(dest.is_order for dest in ModelFiles.read(plain).plan.destinations)


@pytest.mark.parametrize("name", ["llama", "cohere2", "phi3", "gemma4_moe"])
def test_steps_gather_what_their_products_read_in_an_order(tmp_path: Path, name: str) -> None:
    """Beside experts that stay as they are, too."""
    packed, _ = write_packed(name, tmp_path, ACT_ORDER, gptq(4, 32, act_order=True))
    files = ModelFiles.read(packed)
    run = DryRun(GPU, files.config, attention_shape(files.config, EngineConfig()), files.plan)
    for num_tokens in (1, 2, 64):
        first, *_ = run.layers(num_tokens)
        names = [dispatch.request.name for dispatch in first]
        assert names.count("gather_columns") == 4  # for q, k and v, the output, gate and up, and down


def test_experts_with_columns_in_an_order_are_refused_by_name(tmp_path: Path) -> None:
    packed, _ = write_packed("qwen3_moe", tmp_path, ACT_ORDER, gptq(4, 32, act_order=True))
    with pytest.raises(UnsupportedModelError, match=r"experts.*columns in the groups of .*act-order"):
        ModelFiles.read(packed)


def test_packed_weights_are_told_as_what_they_are_and_stay_so(tmp_path: Path) -> None:
    packed, _ = write_packed("llama", tmp_path, BLOCKS, fp8(128, 128), kept=KEPT)
    rows = {row.name.removeprefix("model.layers."): row for row in tensor_rows(ModelFiles.read(packed))}
    assert (rows["0.mlp.down_proj.weight"].transform, rows["0.mlp.down_proj.weight"].dtype) == ("copied", "F16")
    down = rows["1.mlp.down_proj.weight"]
    assert (down.shape, down.dtype, down.nbytes) == ((128, 192), "F8_E4M3", 128 * 192 + 2 * 4)
    assert down.transform == "re-layout of 8 bits a weight to 8.5"
    other, _ = write_packed("llama", tmp_path / "int4", COMPRESSED, compressed(4, 32, symmetric=False))
    rows = {row.name: row for row in tensor_rows(ModelFiles.read(other))}
    own = rows["model.layers.1.mlp.down_proj.weight_packed"]
    assert (own.shape, own.dtype, own.nbytes) == ((128, 192), "uint4", 128 * 192 // 2 + 128 * 6 * 2 + 16 * 6 * 4)
    assert own.transform == "re-layout of 4.62 bits a weight to 5, scales BF16 to F16, exact from 2^-17 on"
    with pytest.raises(UnsupportedModelError, match=r"quantised as F8_E4M3 already, .* can't become int4"):
        ModelFiles.read(packed, WeightScheme.INT4)
