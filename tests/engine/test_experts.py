"""Mixtures of experts, quantised while they load."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.checkpoint.gguf.family_files import write_family
from tests.golden.cases import CASES
from tests.golden.checkpoints import encode, golden, safetensors_bytes, weights
from tests.golden.mixtures import apart
from unicorn_async.config import WeightScheme
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import CheckpointError, UnsupportedModelError

from .checkpoint_files import write_model

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.conftest import OpenEngine


@pytest.mark.parametrize(
    ("name", "scheme", "layout", "tolerance"),
    [
        pytest.param("qwen3_moe", "int8", "q8", 0.1, marks=pytest.mark.whole("experts without a shared one")),
        ("qwen3_moe", "int4", "q4", 0.6),
        ("qwen2_moe", "int8", "q8", 0.1),
    ],
)
async def test_experts_are_quantised_while_they_load(
    name: str, scheme: str, layout: str, tolerance: float, open_engine: OpenEngine
) -> None:
    """Some tokens take other experts then; most of them don't."""
    reference = golden(name)
    async with open_engine(name, "float16", weights=WeightScheme(scheme)) as engine:
        for prompt, expected in zip(reference.prompts, reference.logits, strict=True):
            logits = await engine.logits(prompt)
            assert np.isfinite(logits).all()
            errors = np.abs(logits[:, reference.vocabulary] - expected).max(axis=1) / reference.deviation
            assert np.median(errors) <= tolerance
        await engine.loaded()
        kernels = {f"expert_quant_vec_{layout}", f"expert_quant_sum_{layout}", "linear_vec_f32"}
        assert kernels | {"route", "expert_tiles", "expert_sum"} <= set(engine.kernels)


@pytest.mark.parametrize(("kind", "layout", "tolerance"), [("Q8_0", "q8", 0.1), ("MXFP4", "mxfp4", 0.6)])
async def test_experts_of_a_quantised_file_are_multiplied_as_they_are(
    kind: str, layout: str, tolerance: float, tmp_path: Path, open_engine: OpenEngine
) -> None:
    reference = golden("qwen3_moe")
    path = write_family(tmp_path / "experts.gguf", "qwen3_moe", ("_exps",), kind=kind)
    async with open_engine(path, skip_tokenizer=True) as engine:
        for prompt, expected in zip(reference.prompts, reference.logits, strict=True):
            logits = await engine.logits(prompt)
            errors = np.abs(logits[:, reference.vocabulary] - expected).max(axis=1) / reference.deviation
            assert np.median(errors) <= tolerance
        assert f"expert_quant_vec_{layout}" in engine.kernels


async def test_experts_gates_may_lie_with_what_they_are_for(tmp_path: Path, open_engine: OpenEngine) -> None:
    reference = golden("qwen3_5_moe")
    path = write_family(tmp_path / "joined.gguf", "qwen3_5_moe", joins_gates=True)
    async with open_engine(path, skip_tokenizer=True) as engine:
        assert reference.error(1, await engine.logits(reference.prompts[1])) <= 1e-2


@pytest.mark.parametrize(
    ("name", "quantised", "kind", "tolerance"),
    [
        ("qwen3_moe", "ffn_up_exps.weight", "F32", 1e-2),
        ("qwen2_moe", "ffn_gate_exps.weight", "Q8_0", 0.1),  # with an expert for all tokens
        ("gpt_oss", "ffn_up_exps.weight", "Q8_0", 0.1),  # with biases
        ("lfm2_moe", "ffn_gate_exps.weight", "F32", 1e-2),
    ],
)
async def test_gates_may_have_another_type_than_what_they_are_for(
    name: str, quantised: str, kind: str, tolerance: float, tmp_path: Path, open_engine: OpenEngine
) -> None:
    """A token alone, and many: some of these take other experts where weights are rounded, most of them don't."""
    reference = golden(name)
    path = write_family(tmp_path / "mixed.gguf", name, quantised=(quantised,), kind=kind)
    async with open_engine(path, skip_tokenizer=True) as engine:
        for index in (0, 2):
            logits = (await engine.logits(reference.prompts[index]))[:, reference.vocabulary]
            errors = np.abs(logits - reference.logits[index]).max(axis=1) / reference.deviation
            assert np.median(errors) <= tolerance
            assert kind == "Q8_0" or errors.max() <= tolerance
    matrices = {dest.name.rpartition(".")[2] for dest in ModelFiles.read(path).plan.destinations}
    assert {"experts_gate", "experts_up"} <= matrices and "experts_gate_up" not in matrices


def test_experts_of_different_types_in_one_layer_are_refused(tmp_path: Path) -> None:
    path = write_family(tmp_path / "m.gguf", "mixtral", ("blk.1.ffn_down.3",), has_experts_apart=True)
    with pytest.raises(
        UnsupportedModelError, match=r"'blk\.1\.ffn_down\.0\.weight' \(F16\) and '.*down\.3.*' \(Q8_0\): experts of one"
    ):
        ModelFiles.read(path)


def test_a_file_that_stacks_other_numbers_of_experts_than_it_says_is_refused(tmp_path: Path) -> None:
    path = write_family(tmp_path / "few.gguf", "qwen3_moe")
    key = b"qwen3moe.expert_count\x04\0\0\0"
    data = path.read_bytes()
    for count, error, message in (
        (6, CheckpointError, r"_exps\.weight': expected three dimensions, the first of 6 experts, got shape \[12, "),
        (1 << 30, UnsupportedModelError, r"qwen3moe\.expert_count: 1073741824: at most 1024 are supported"),
    ):
        path.write_bytes(data.replace(key + struct.pack("<I", 12), key + struct.pack("<I", count)))
        with pytest.raises(error, match=message):
            ModelFiles.read(path)


async def test_each_expert_may_have_tensors_of_its_own_in_a_family_that_stacks_them(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    model, reference = write_model("qwen3_5_moe", "float16", tmp_path / "model"), golden("qwen3_5_moe")
    tensors = [
        (f"{name}.weight" if ".experts." in name else name, *encode(np.ascontiguousarray(value), "float16"))
        for name, value in apart(weights(CASES["qwen3_5_moe"]))
    ]
    (model / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    async with open_engine(model) as engine:
        assert reference.error(2, await engine.logits(reference.prompts[2])) <= 1e-2


def test_a_stack_of_other_experts_than_the_configuration_has_is_refused(tmp_path: Path) -> None:
    model = write_model("qwen3_5_moe", "float16", tmp_path / "model")
    config = (model / "config.json").read_text()
    (model / "config.json").write_text(config.replace('"num_experts": 12', '"num_experts": 6'))
    with pytest.raises(CheckpointError, match=r"mlp\.gate\.weight': config\.json asks for shape \[6, 96\]"):
        ModelFiles.read(model)
    (model / "config.json").write_text(config.replace('moe_intermediate_size": 64', 'moe_intermediate_size": 32'))
    with pytest.raises(CheckpointError, match=r"asks for shape \[12, 64, 96\], the file has \[12, 128, 96\]"):
        ModelFiles.read(model)
