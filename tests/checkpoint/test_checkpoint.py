"""Directories in Hugging Face's layout."""

from __future__ import annotations

import json
import re
from math import prod
from typing import TYPE_CHECKING

import pytest

from tests.golden.checkpoints import safetensors_bytes
from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.checkpoint.names import canonical_name
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.models.registry import model_spec

from . import builders

if TYPE_CHECKING:
    from pathlib import Path

TENSOR = builders.tensor("BF16", 2, 4)


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("language_model.model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.language_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("vision_tower.vision_model.embeddings.weight", None),
        ("model.vision_tower.vision_model.embeddings.weight", None),
        ("mtp.layers.0.self_attn.q_proj.weight", None),
        ("model.mtp_block.0.self_attn.q_proj.weight", None),
        ("multi_modal_projector.mm_input_projection_weight", None),
        ("model.multi_modal_projector.mm_soft_emb_norm.weight", None),
        ("model.audio_tower.x", None),
    ],
)
def test_names_have_one_layout(name: str, canonical: str | None) -> None:
    assert canonical_name(name) == canonical


def test_one_file_is_read(tmp_path: Path) -> None:
    directory = builders.write(tmp_path, {"model.norm.weight": TENSOR, "vision_tower.x": TENSOR})
    checkpoint = Checkpoint.read(directory)
    assert checkpoint.files == (directory / "model.safetensors",)
    assert list(checkpoint.tensors) == ["model.norm.weight"]
    assert checkpoint.skipped == ("vision_tower.x",)
    source = checkpoint.tensors["model.norm.weight"]
    assert (source.dtype, source.shape, source.nbytes, source.file) == ("BF16", (2, 4), 16, 0)


def test_shards_are_found_by_the_index(tmp_path: Path) -> None:
    shards = [{"model.a": TENSOR}, {"language_model.model.b": TENSOR}, {"c": TENSOR}]
    checkpoint = Checkpoint.read(builders.write(tmp_path, *shards))
    assert {name: source.file for name, source in checkpoint.tensors.items()} == {"model.a": 0, "model.b": 1, "c": 2}
    for source in checkpoint.tensors.values():
        content = checkpoint.files[source.file].read_bytes()
        assert content[source.offset : source.offset + source.nbytes] == TENSOR[2]


def test_tensors_that_the_index_does_not_name_are_left_out(tmp_path: Path) -> None:
    directory = builders.write(tmp_path, {"a": TENSOR}, {"b": TENSOR})
    (directory / "model-00001-of-00002.safetensors").write_bytes(builders.file_bytes({"a": TENSOR, "b": TENSOR}))
    checkpoint = Checkpoint.read(directory)
    assert {name: source.file for name, source in checkpoint.tensors.items()} == {"a": 0, "b": 1}


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    directory = builders.write(tmp_path, {"a": TENSOR}, {"b": TENSOR})
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="1 of 2 weight files missing, first model-00002"):
        Checkpoint.read(directory)


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path) -> None:
    directory = builders.write(tmp_path, {"a": TENSOR}, {"b": TENSOR})
    (directory / "model-00002-of-00002.safetensors").write_bytes(builders.file_bytes({"c": TENSOR}))
    with pytest.raises(CheckpointError, match=r"model-00002.*'b'.*missing"):
        Checkpoint.read(directory)


@pytest.mark.parametrize(
    "file_name", ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", ".safetensors", 7, None, "x.bin"]
)
def test_an_index_cannot_lead_out_of_the_directory(tmp_path: Path, file_name: object) -> None:
    directory = builders.write(tmp_path, {"a": TENSOR}, {"b": TENSOR})
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": file_name}}))
    with pytest.raises(CheckpointError, match="is not a file name"):
        Checkpoint.read(directory)


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_a_damaged_index_is_an_error(tmp_path: Path, index: str) -> None:
    directory = builders.write(tmp_path, {"a": TENSOR}, {"b": TENSOR})
    (directory / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        Checkpoint.read(directory)


def test_two_names_of_one_tensor_contradict_each_other(tmp_path: Path) -> None:
    directory = builders.write(tmp_path, {"model.a": TENSOR, "model.language_model.a": TENSOR})
    with pytest.raises(CheckpointError, match="are the same tensor"):
        Checkpoint.read(directory)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"quantization_config": {"quant_method": "auto-round", "bits": 4}}, r"auto-round \(4 bits\)"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "bitsandbytes"),
        ({"quantization_config": {"load_in_8bit": True}}, r"bitsandbytes \(load_in_8bit\)"),
        ({"quantization_config": {"quant_method": "fbgemm_fp8", "fmt": "e4m3"}}, r"fbgemm_fp8 \(e4m3\)"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}},
            r"compressed-tensors \(nvfp4-pack-quantized\)",
        ),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, r"ModelOpt \(NVFP4\)"),
        ({"quantization_config": {}}, "an unknown method"),
        ({"quantization_config": 4}, "an unknown method"),
        ({"quantization": {"bits": 4, "group_size": 64}}, r"MLX \(4 bits, groups of 64\)"),
        (
            {
                "quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"},
                "quantization_config": {"bits": 4, "group_size": 32, "mode": "mxfp4"},
            },
            r"MLX \(mxfp4, 4 bits, groups of 32\)",
        ),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_quantised_checkpoints_are_refused_by_name(
    tmp_path: Path, config: dict[str, object], name: str, nested: bool
) -> None:
    directory = builders.write(tmp_path, {"a": TENSOR}, config={"text_config": config} if nested else config)
    with pytest.raises(UnsupportedModelError, match=f"quantised with {name}, which is not supported"):
        Checkpoint.read(directory)


def test_a_file_beside_the_configuration_may_announce_it(tmp_path: Path) -> None:
    directory = builders.write(tmp_path, {"a": TENSOR})
    (directory / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    with pytest.raises(UnsupportedModelError, match=r"quantised with ModelOpt \(NVFP4\)"):
        Checkpoint.read(directory)


@pytest.mark.parametrize(
    ("parts", "layout"),
    [
        ({"qweight": "I32", "qzeros": "I32"}, "GPTQ or AWQ"),
        ({"weight": "U32", "scales": "BF16", "biases": "BF16"}, "MLX"),
        ({"weight": "U8", "weight_scale": "F8_E4M3", "weight_scale_2": "F32"}, "NVFP4 by ModelOpt"),
        ({"weight_packed": "U8", "weight_scale": "F8_E4M3", "weight_global_scale": "F32"}, "NVFP4 by comp"),
        ({"weight_packed": "I32", "weight_scale": "BF16"}, "compressed-tensors"),
        ({"weight": "F8_E4M3", "weight_scale_inv": "F32"}, "FP8 with blocks of scales"),
        ({"weight": "I8", "SCB": "F32"}, "bitsandbytes in 8 bits"),
    ],
)
def test_quantised_tensors_are_refused_without_a_word_in_the_configuration(
    tmp_path: Path, parts: dict[str, str], layout: str
) -> None:
    tensors = {f"model.layers.0.mlp.up_proj.{part}": builders.tensor(dtype, 4) for part, dtype in parts.items()}
    with pytest.raises(UnsupportedModelError, match=rf"quantised with {layout}.*model\.layers\.0\.mlp\.up_proj"):
        Checkpoint.read(builders.write(tmp_path, tensors))


def test_the_architecture_comes_before_the_kind_of_weights(tmp_path: Path) -> None:
    config = {"architectures": ["UnheardOfForCausalLM"], "quantization_config": {"quant_method": "eetq"}}
    directory = builders.write(tmp_path, {"a": TENSOR}, config=config)
    with pytest.raises(UnsupportedModelError, match="UnheardOfForCausalLM"):
        Checkpoint.read(directory, model_spec)
    with pytest.raises(UnsupportedModelError, match="quantised with eetq"):
        Checkpoint.read(directory)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="UnheardOfForCausalLM"):
        Checkpoint.read(directory, model_spec)


@pytest.mark.parametrize("has_config", [False, True])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "RWKV-x070-World-0.1B.pth"])
def test_pickled_weights_are_refused_unopened_with_what_to_do(tmp_path: Path, name: str, has_config: bool) -> None:
    directory = builders.write(tmp_path, {"a": TENSOR})
    (directory / "model.safetensors").unlink()
    (directory / name).mkdir()  # which can't be opened
    if not has_config:
        (directory / "config.json").unlink()
    with pytest.raises(UnsupportedModelError, match=rf"{re.escape(name)}, a pickle.*weights_only=True.*save_file"):
        Checkpoint.read(directory)


def test_a_directory_without_weights_or_configuration_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Checkpoint.read(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        Checkpoint.read(tmp_path)


def test_an_adapter_s_directory_is_told_to_be_one(tmp_path: Path) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors", "training_args.bin"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(CheckpointError, match=r"adapter_config\.json and no config\.json: .* with --lora"):
        Checkpoint.read(tmp_path)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"emb.weight": (8,)}, r"'emb.weight': expected two dimensions, got shape \[8\]"),
        ({"emb.weight": (8, 4)}, "'blocks.0.ffn.key.weight' is missing"),
        ({"emb.weight": (8, 4), "blocks.0.ffn.key.weight": (6, 4)}, "'blocks.0.att.w1' is missing"),
    ],
)
def test_what_lacks_beside_rwkv_s_own_names_is_named(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    found = {**shapes, "blocks.0.att.r_k": (1, 4)}
    tensors = [(name, "F32", shape, bytes(4 * prod(shape))) for name, shape in found.items()]
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.read(tmp_path)


@pytest.mark.parametrize(
    ("network", "table", "is_turned"),
    [
        ("blocks.0.att.w1", "emb.weight", True),
        ("model.layers.0.attn.w_lora.lora.0.weight", "model.embeddings.weight", False),
    ],
)
def test_small_networks_as_wide_as_the_model_are_turned_by_their_names(
    tmp_path: Path, network: str, table: str, is_turned: bool
) -> None:
    """Their shapes don't say it then."""
    tensors = {network: builders.tensor("F32", 4, 4), table: builders.tensor("F32", 8, 4)}
    if is_turned:
        tensors["blocks.0.att.r_k"] = builders.tensor("F32", 1, 4)
    found = Checkpoint.read(builders.write(tmp_path, tensors, config={"architectures": ["RWKV7ForCausalLM"]}))
    assert found.traits.are_networks_turned is is_turned
