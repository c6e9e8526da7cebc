"""Files of random weights: a mixture of experts is one to the engine, as a checkpoint and as a GGUF file."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gguf import MODEL_ARCH, MODEL_TENSORS, TENSOR_NAMES

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

import checkpoint_tensors
import gguf_model
import make_checkpoint
import make_gguf
import model_shapes

from tests.checkpoint.gguf.family_files import write_family
from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.checkpoint.gguf.header import parse_header
from unicorn_async.engine.files import ModelFiles
from unicorn_async.models.blocks.experts import Experts

if TYPE_CHECKING:
    from types import ModuleType

SHAPE = replace(
    model_shapes.SHAPES["qwen3-30b-a3b"],
    **{"hidden": 256, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 512, "vocab": 300},
    **{"experts": 8, "experts_used": 2, "expert_ffn": 256},
)


def write(script: ModuleType, model: str, path: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Path:
    """Run the script as from the command line, with a pool of no size to speak of."""
    monkeypatch.setitem(model_shapes.SHAPES, "tiny", SHAPE)
    monkeypatch.setattr(script, "POOL_BYTES", 1 << 16)
    monkeypatch.setattr(sys, "argv", [script.__name__, model, str(path), *options])
    assert script.main() == 0
    return path


@pytest.mark.parametrize(
    ("script", "model", "name"), [(make_checkpoint, "tiny", "tiny"), (make_gguf, "tiny:Q4_K", "tiny.gguf")]
)
def test_a_mixture_of_experts_is_planned_whole(
    script: ModuleType, model: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ModelFiles.read(write(script, model, tmp_path / name, monkeypatch))
    experts = [block for layer in files.config.layers for block in layer.blocks if isinstance(block, Experts)]
    assert [block.routing.num_experts for block in experts] == [SHAPE.experts] * SHAPE.layers
    assert files.checkpoint.skipped == ()


def test_gpt_oss_has_experts_of_mxfp4_beside_matrices_of_q8_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"hidden": 96, "heads": 4, "kv_heads": 2, "vocab": 300, "experts": 4, "expert_ffn": 64, "ffn": 64}
    monkeypatch.setitem(gguf_model.GGUF_SHAPES.maps[1], "gpt-oss-20b", replace(gguf_model.GPT_OSS, **sizes))
    files = ModelFiles.read(write(make_gguf, "gpt-oss-20b:MXFP4:2", tmp_path / "oss.gguf", monkeypatch))
    assert (files.config.architecture, files.config.layer_windows) == ("GptOssForCausalLM", (128, 0))
    types = {dest.name: dest.dtype.value for dest in files.plan.destinations}
    assert {types[f"layers.1.{name}"] for name in ("experts_gate_up", "experts_down")} == {"MXFP4"}
    assert {types["embed"], types[files.config.head.table], types["layers.0.qkv"]} == {"Q8_0"}
    with pytest.raises(SystemExit):
        write(make_gguf, "llama-8b:MXFP4", tmp_path / "llama.gguf", monkeypatch)


def test_a_gguf_file_has_the_vocabulary_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ModelFiles.read(write(make_gguf, "tiny:Q8_0", tmp_path / "tiny.gguf", monkeypatch, "--vocab", "260"))
    assert files.config.vocab_size == 260
    assert len(files.checkpoint.gguf_metadata["tokenizer.ggml.token_type"]) == 260
    with pytest.raises(SystemExit):
        write(make_gguf, "tiny:Q8_0", tmp_path / "less.gguf", monkeypatch, "--vocab", "259")
    assert "vocabulary: expected 260 tokens or more, got 259" in capsys.readouterr().err


def test_norms_are_ones_and_routers_are_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(make_gguf, "tiny:Q4_K", tmp_path / "tiny.gguf", monkeypatch)
    tensors = Checkpoint.read(path).tensors.values()
    values = {
        source.name: np.frombuffer(path.read_bytes()[source.offset : source.offset + source.nbytes], "<f4")
        for source in tensors
        if source.dtype == "F32"
    }
    assert np.all(values["blk.0.attn_norm.weight"] == 1)
    assert 0.5 < values["blk.0.ffn_gate_inp.weight"].std() * SHAPE.hidden**0.5 < 2


@pytest.mark.parametrize(
    ("name", "num_tensors", "num_elements"),
    [("rwkv7-2.9b", 1_059, 2_947_735_040), ("qwen3.5-27b", 851, 26_895_998_464), ("qwen3.5-35b-a3b", 693, None)],
)
def test_checkpoints_of_recurrent_models_have_what_released_ones_have(
    name: str, num_tensors: int, num_elements: int | None
) -> None:
    found = checkpoint_tensors.tensors(model_shapes.SHAPES[name])
    assert len(found) == num_tensors
    assert num_elements in (None, sum(prod(dims) for _, dims in found))


@pytest.mark.parametrize("name", ["rwkv7-2.9b", "qwen3.5-27b", "qwen3.5-35b-a3b"])
def test_a_recurrent_checkpoint_is_planned_whole_and_its_states_decay(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, Any] = {"hidden": 128, "layers": 4, "heads": 2, "kv_heads": 1, "head_dim": 64, "ffn": 128}
    shape = replace(model_shapes.SHAPES[name], **sizes, vocab=300)
    if shape.ranks is None:
        shape = replace(shape, linear=model_shapes.LinearHeads(1, 2, 32))
    if shape.experts:
        shape = replace(shape, experts=4, experts_used=2, expert_ffn=64, shared_ffn=64)
    monkeypatch.setitem(model_shapes.SHAPES, "tiny", shape)
    monkeypatch.setattr(make_checkpoint, "POOL_BYTES", 1 << 16)
    monkeypatch.setattr(sys, "argv", ["make_checkpoint.py", "tiny", str(tmp_path), "--dtype", "F32"])
    assert make_checkpoint.main() == 0
    files = ModelFiles.read(tmp_path)
    assert (files.config.has_fixed_state, files.checkpoint.skipped) == (True, ())
    decays = ("w_lora.lora.2.bias", "dt_bias")
    sources = [source for source in files.checkpoint.tensors.values() if source.name.endswith(decays)]
    data = (tmp_path / "model-00001-of-00001.safetensors").read_bytes()
    values = [np.frombuffer(data[one.offset : one.offset + one.nbytes], "<f4") for one in sources]
    assert len(values) == (4 if shape.ranks else 3)
    assert all(one.min() > -7 and one.max() < -0.9 for one in values)


@pytest.mark.parametrize("name", ["qwen3.5-27b", "qwen3.5-35b-a3b"])
def test_a_gguf_file_with_linear_attention_is_planned_whole_and_its_states_decay(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, Any] = {"hidden": 256, "heads": 2, "kv_heads": 1, "head_dim": 64, "ffn": 256, "vocab": 300}
    shape = replace(model_shapes.SHAPES[name], **sizes, linear=model_shapes.LinearHeads(1, 2, 32))
    if shape.experts:
        shape = replace(shape, experts=4, experts_used=2, expert_ffn=256, shared_ffn=256)
    monkeypatch.setitem(model_shapes.SHAPES, "small", shape)
    path = write(make_gguf, "small:Q4_K:4", tmp_path / "small.gguf", monkeypatch)
    files = ModelFiles.read(path)
    assert files.checkpoint.skipped == ()
    assert files.config.layer_windows == (None, None, None, 0)
    rates = [one for one in files.checkpoint.tensors.values() if one.name.endswith("ssm_a")]
    assert len(rates) == 3
    for one in rates:
        values = np.frombuffer(path.read_bytes()[one.offset : one.offset + one.nbytes], "<f4")
        assert values.min() >= -16 and values.max() <= -1


def test_a_gguf_file_of_rwkv_7_is_planned_whole_as_converted_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, Any] = {"hidden": 256, "heads": 4, "kv_heads": 4, "ffn": 512, "vocab": 300}
    monkeypatch.setitem(model_shapes.SHAPES, "small", replace(model_shapes.SHAPES["rwkv7-2.9b"], **sizes))
    path = write(make_gguf, "small:Q4_K:3", tmp_path / "small.gguf", monkeypatch)
    files = ModelFiles.read(path)
    assert (files.config.has_fixed_state, files.checkpoint.skipped) == (True, ())
    types = {dest.name: dest.dtype.value for dest in files.plan.destinations}
    assert types["embed"] == "Q6_K"
    assert {kind for name, kind in types.items() if name.startswith("layers.2.")} == {"Q4_K", "F32"}
    converted = write_family(tmp_path / "converted.gguf", "rwkv7")
    made, wanted = (parse_header(io.BytesIO(one.read_bytes()), 1 << 30, source=one.name) for one in (path, converted))
    kinds = [
        {name: (entry.dtype == "F32", len(entry.shape)) for name, entry in one.tensors.items()}
        for one in (made, wanted)
    ]
    assert kinds[0] == kinds[1]
    assert {key for key in wanted.metadata if key.startswith("rwkv7.")} <= made.metadata.keys()


def test_a_gguf_file_of_granite_4_is_planned_whole_as_converted_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes: dict[str, Any] = {"hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "vocab": 300}
    sizes |= {"experts": 4, "experts_used": 2, "ffn": 256, "expert_ffn": 256, "shared_ffn": 256}
    small = replace(gguf_model.GRANITE_TINY, **sizes, mamba=model_shapes.MambaHeads(8, groups=2))
    monkeypatch.setitem(model_shapes.SHAPES, "small", small)
    path = write(make_gguf, "small:Q4_K:6", tmp_path / "small.gguf", monkeypatch)
    files = ModelFiles.read(path)
    assert (files.config.has_fixed_state, files.checkpoint.skipped) == (True, ())
    assert files.config.layer_windows == (*(None,) * 5, 0)
    converted = write_family(tmp_path / "converted.gguf", "granite_hybrid_moe")
    made, wanted = (parse_header(io.BytesIO(one.read_bytes()), 1 << 30, source=one.name) for one in (path, converted))
    kinds = [
        {(re.sub(r"\d+", "", name), entry.dtype == "F32", len(entry.shape)) for name, entry in one.tensors.items()}
        for one in (made, wanted)
    ]
    assert kinds[0] ^ kinds[1] == {
        (f"blk..{name}.bias", True, 1) for name in ("ssm_in", "ssm_out")
    }  # of the case alone
    assert {key for key in wanted.metadata if key.startswith("granitehybrid.")} <= made.metadata.keys()
    with pytest.raises(SystemExit):
        write(make_gguf, "small:Q4_K:5", tmp_path / "none.gguf", monkeypatch)
    assert "layers: expected 6 or more, of which one attends, got 5" in capsys.readouterr().err


def small_flash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have GLM 4.7 Flash's shape with small sizes as "small"."""
    sizes: dict[str, Any] = {"hidden": 256, "heads": 2, "head_dim": 96, "ffn": 512, "vocab": 300}
    sizes |= {"experts": 4, "experts_used": 2, "expert_ffn": 256, "shared_ffn": 256}
    latents = model_shapes.Latents(query=256, kept=128, plain=64, rotary=32, value=128)
    monkeypatch.setitem(model_shapes.SHAPES, "small", replace(gguf_model.GLM_FLASH, **sizes, latents=latents))


def test_a_gguf_file_of_glm_4_7_flash_has_latents_and_corrections_under_the_converters_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small_flash(monkeypatch)
    path = write(make_gguf, "small:Q4_K:2", tmp_path / "small.gguf", monkeypatch)
    header = parse_header(io.BytesIO(path.read_bytes()), 1 << 30, source=path.name)
    known = {TENSOR_NAMES[tensor] for tensor in MODEL_TENSORS[MODEL_ARCH.DEEPSEEK2]}
    assert {re.sub(r"blk\.\d", "blk.{bid}", name.rpartition(".")[0]) for name in header.tensors} <= known
    shapes = {name: entry.shape for name, entry in header.tensors.items()}
    assert shapes["blk.0.attn_kv_a_mqa.weight"] == (128 + 32, 256)
    assert shapes["blk.0.attn_q_b.weight"] == (2 * (64 + 32), 256)
    assert shapes["blk.0.attn_k_b.weight"] == (2, 128, 64)
    assert shapes["blk.0.attn_v_b.weight"] == (2, 128, 128)
    assert (shapes["blk.0.ffn_up.weight"], shapes["blk.1.ffn_up_exps.weight"]) == ((512, 256), (4, 256, 256))
    assert ("blk.0.exp_probs_b.bias" in shapes, shapes["blk.1.exp_probs_b.bias"]) == (False, (4,))
    keys = {name.removeprefix("deepseek2."): value for name, value in header.metadata.items()}
    assert [keys[f"attention.{kind}_length{own}"] for own in ("", "_mla") for kind in ("key", "value")] == [
        *(128 + 32, 128),
        *(64 + 32, 128),
    ]
    for layers in (26, 27):
        with pytest.raises(SystemExit):
            write(make_gguf, f"small:Q4_K:{layers}", tmp_path / "none.gguf", monkeypatch)
        assert f"llama.cpp takes models of {layers} for ones without query latents" in capsys.readouterr().err


def test_a_gguf_file_of_glm_4_7_flash_is_planned_whole_as_converted_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_flash(monkeypatch)
    path = write(make_gguf, "small:Q4_K:2", tmp_path / "small.gguf", monkeypatch)
    files = ModelFiles.read(path)
    assert (files.config.architecture, files.checkpoint.skipped) == ("DeepseekV3ForCausalLM", ())
    experts = [block for layer in files.config.layers for block in layer.blocks if isinstance(block, Experts)]
    assert [(block.routing.is_sigmoid, block.routing.scale, block.is_corrected) for block in experts] == [
        (True, pytest.approx(1.8), True)
    ]
    converted = write_family(tmp_path / "converted.gguf", "glm4_moe_lite")
    made, wanted = (parse_header(io.BytesIO(one.read_bytes()), 1 << 30, source=one.name) for one in (path, converted))
    kinds = [
        {(re.sub(r"\d+", "", name), entry.dtype == "F32", len(entry.shape)) for name, entry in one.tensors.items()}
        for one in (made, wanted)
    ]
    assert kinds[0] ^ kinds[1] == {("blk..nextn.eh_proj.weight", False, 2)}  # no layer predicts a token more
    keys = {key for key in wanted.metadata if key.startswith("deepseek2.")}
    assert keys - made.metadata.keys() == {"deepseek2.nextn_predict_layers"}
