"""Metadata and tensors of GGUF files as the models want them."""

from __future__ import annotations

import contextlib
import io
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden.cases import CASES
from unicorn_async.checkpoint.checkpoint import Checkpoint
from unicorn_async.checkpoint.gguf.config import file_traits, gguf_config, json_config
from unicorn_async.checkpoint.gguf.header import parse_header
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.models.registry import model_spec
from unicorn_async.rotary import RotaryScaling
from unicorn_async.weights.plan import make_plan

from .builders import U32, File, Tensor, array, write, write_parts
from .family_files import FAMILY_FILES, write_family
from .golden_files import gguf_metadata, gguf_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from unicorn_async.models.spec import ModelSpec

SMALL = {  # tensors' names alone
    name: {key: Tensor("F32", (512, 1), bytes(2048)) for key in gguf_tensors(name, "F16")}
    for name in ("gemma3", "llama", "qwen2")
}


YARN = {
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 8.0,
    "rope__scaling__original_context_length": U32(512),
}


def read(folder: Path, name: str, **changes: object) -> Checkpoint:
    """Read a case's file whose metadata is changed; keys lack the architecture, dots are underscores twice."""
    metadata = gguf_metadata(name)
    architecture = metadata["general.architecture"]
    metadata |= {f"{architecture}.{key.replace('__', '.')}": value for key, value in changes.items()}
    kept = {key: value for key, value in metadata.items() if value is not None}
    return Checkpoint.read(write(folder / "m.gguf", kept, gguf_tensors(name, "F16")))


def config_of(checkpoint: Checkpoint) -> ModelSpec:
    return model_spec(checkpoint.config, checkpoint.config_name, checkpoint.traits)


@pytest.mark.parametrize("name", ["gemma3", "llama", "llama_tied", "mistral", "qwen2", "qwen3"])
def test_the_configuration_is_that_of_the_directory(name: str, tmp_path: Path) -> None:
    wanted, found = (asdict(spec) for spec in (model_spec(CASES[name].config), config_of(read(tmp_path, name))))
    differences = dict(differing(wanted, found))
    for path in [path for path in differences if path.endswith((".eps", ".softmax_scale"))]:
        one, other = differences.pop(path)
        assert other == pytest.approx(one), path
    for path in [path for path in differences if path.endswith(".plus_one")]:
        assert differences.pop(path) == (True, False), path  # the file's weights contain it
    if name.startswith("llama"):
        differences = {path: values for path, values in differences.items() if ".rotary." not in path}
    assert differences.keys() <= {".bos_token_id", ".eos_token_ids"}  # the tokenizer's, which these files have not


@pytest.mark.parametrize("name", FAMILY_FILES)
def test_the_configuration_of_a_family_is_that_of_the_directory(name: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint.read(write_family(tmp_path / "m.gguf", name))
    wanted, found = (asdict(spec) for spec in (model_spec(CASES[name].config), config_of(checkpoint)))
    differences = {path: values for path, values in differing(wanted, found) if "predictors" not in path}
    for path, (one, other) in list(differences.items()):
        if isinstance(one, float) and other == pytest.approx(one):
            del differences[path]
        elif path.endswith(".plus_one"):
            assert differences.pop(path) == (True, False), path  # the file's weights contain it
        elif path.endswith((".is_tiled", ".has_rates", ".is_gate_apart", ".is_split")):
            assert differences.pop(path) == (False, True), path  # what the converter makes of attention
        elif path.endswith((".are_shifts_stacked", ".is_bonus_flat")):
            assert differences.pop(path) == (False, True), path  # as the converter lays out RWKV-7's vectors
        elif path.endswith(".is_norm_stacked"):
            assert differences.pop(path) == (False, True), path  # a row for each of Mamba-2's groups
        elif path.endswith((".is_stacked", ".by_turns")) or (name.startswith("granite") and path.endswith(".is_fused")):
            assert differences.pop(path) == (True, False), path
    if name == "exaone4":  # Llama 3's scaling comes as factors
        differences = {path: values for path, values in differences.items() if ".rotary." not in path}
    if name.endswith("_vl"):  # the file has the language model alone
        assert differences.pop(".architecture")[1] in ("Qwen2ForCausalLM", "Qwen3ForCausalLM")
    assert differences.keys() <= {".bos_token_id", ".eos_token_ids"}
    make_plan(checkpoint, config_of(checkpoint).wanted_tensors())


def differing(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Paths of what differs in two trees of dicts and tuples, with both values."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from differing(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differing(left, right, f"{path}.{index}")
    elif one != other:
        yield path, (one, other)


def test_llama3_s_scaling_comes_as_factors(tmp_path: Path) -> None:
    rotary = config_of(read(tmp_path, "llama")).attention.rotary
    assert rotary.scaling is RotaryScaling.FACTORS
    assert len(rotary.factors) == 16
    assert rotary.factors[0] == 1.0
    assert rotary.factors[-1] == 8.0


@pytest.mark.parametrize(("given", "amplitude"), [({}, 1.2079), ({"attn": 1.0}, 1.2079), ({"attn": 1.5}, 1.5)])
def test_a_factor_of_the_attention_is_yarn_s(given: dict[str, float], amplitude: float, tmp_path: Path) -> None:
    keys = {f"rope__scaling__{name}_factor": value for name, value in given.items()}
    rotary = config_of(read(tmp_path, "qwen2", **YARN, **keys)).attention.rotary
    assert rotary.amplitude == pytest.approx(amplitude, abs=1e-4)


def test_a_factor_of_one_is_none(tmp_path: Path) -> None:
    config = config_of(read(tmp_path, "qwen2", rope__scaling__attn_factor=1.0))
    assert config == config_of(read(tmp_path, "qwen2"))


def test_rows_of_llama_s_queries_and_keys_are_put_in_order(tmp_path: Path) -> None:
    checkpoint = read(tmp_path, "llama")
    interleaved = {name for name, source in checkpoint.tensors.items() if source.interleaved_head_rows}
    parts = ("self_attn.q_proj.weight", "self_attn.k_proj.weight")
    assert interleaved == {f"model.layers.{layer}.{part}" for layer in range(3) for part in parts}
    plan = make_plan(checkpoint, config_of(checkpoint).wanted_tensors())
    assert [chunk.dest for chunk in plan.chunks if chunk.row_permutation] == [f"layers.{n}.qkv" for n in range(3)]
    assert not any(source.interleaved_head_rows for source in read(tmp_path, "qwen2").tensors.values())


def test_chunks_are_cut_between_heads(tmp_path: Path) -> None:
    checkpoint = read(tmp_path, "llama")
    head_bytes = 32 * 128 * 2
    for chunk_bytes, heads in ((1024, 1), (3 * head_bytes - 16, 2), (1 << 20, 6)):
        plan = make_plan(checkpoint, config_of(checkpoint).wanted_tensors(), chunk_bytes=chunk_bytes)
        sizes = {chunk.nbytes // head_bytes for chunk in plan.chunks if chunk.row_permutation}
        assert max(sizes) == heads
        assert not any(chunk.nbytes % head_bytes for chunk in plan.chunks if chunk.row_permutation)


def test_gemma_s_layers_may_be_listed_one_by_one(tmp_path: Path) -> None:
    pattern = [True, False, True, True, True, False]
    config = config_of(read(tmp_path, "gemma3", attention__sliding_window_pattern=pattern))
    assert config.layer_windows == (32, 0, 32, 32, 32, 0)


def test_gemma_s_queries_are_scaled_by_the_size_of_the_head_where_nothing_is_said(tmp_path: Path) -> None:
    assert config_of(read(tmp_path, "gemma3", attention__scale=None)).attention.softmax_scale == pytest.approx(32**-0.5)


@pytest.mark.parametrize("key", ["attention.head_count", "attention.head_count_kv", "feed_forward_length"])
def test_what_is_said_for_each_layer_may_be_the_same_for_all(key: str, tmp_path: Path) -> None:
    plain = gguf_metadata("llama")
    value, layers = plain[f"llama.{key}"], plain["llama.block_count"]
    assert isinstance(value, U32) and isinstance(layers, U32)
    found = read(tmp_path, "llama", **{key.replace(".", "__"): [value.number] * layers.number})
    assert found.config == read(tmp_path, "llama").config


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama", {"feed_forward_length": [192, 192, 128]}, r"feed_forward_length: expected a positive .* array of 3"),
        ("llama", {"attention__head_count": [4, 4]}, r"head_count: expected a positive integer, got an array of 2"),
        ("llama", {"block_count": None}, r"llama\.block_count is missing"),
        ("llama", {"block_count": U32(1 << 31)}, r"llama\.block_count: expected at most \d+, the number of tensors"),
        ("llama", {"block_count": U32(4)}, r"'model\.layers\.3\.input_layernorm\.weight' .* is missing"),
        ("llama", {"embedding_length": "big"}, r"llama\.embedding_length: expected a positive integer, got 'big'"),
        ("llama", {"feed_forward_length": U32(128)}, r"m\.gguf asks for shape \[128, 128\], the file has \[192, 128\]"),
        ("gemma3", {"attention__causal": False}, r"gemma3\.attention\.causal: false: only causal attention"),
        ("gemma3", {"expert_count": U32(8)}, r"gemma3\.expert_count: 8: experts are not supported"),
        ("llama", {"expert_count": U32(8)}, r"llama\.expert_used_count is missing"),
        ("llama", {"attention__value_length": U32(64)}, r"attention\.value_length: 64 is not supported"),
        ("llama", {"rope__dimension_count": U32(16)}, r"rope\.dimension_count: 16 is not supported"),
        ("llama", {"rope__scaling__type": "linear"}, r"'linear' beside the tensor 'rope_freqs\.weight'"),
        ("llama", {"rope__freq_base": "x"}, r"rope\.freq_base: expected a number"),
        ("llama", {"attention__head_count_kv": [1, 2]}, r"head_count_kv: expected a positive integer"),
        ("qwen2", {"rope__scaling__type": "dynamic"}, r"rope_type 'dynamic' is not supported"),
        ("qwen2", {"rope__scaling__type": "yarn"}, r"qwen2\.rope\.scaling\.original_context_length is missing"),
        ("qwen2", {"rope__scaling__attn_factor": 1.2}, r"qwen2\.rope\.scaling\.attn_factor: 1\.2\d* without YaRN"),
        ("llama", {"rope__scaling__attn_factor": 1.2}, r"llama\.rope\.scaling\.attn_factor: 1\.2\d* without YaRN"),
        (
            "qwen2",
            {**YARN, "rope__scaling__attn_factor": 1.5, "rope__scaling__yarn_attn_factor": 1.25},
            r"qwen2\.rope\.scaling\.attn_factor: 1\.5 beside a yarn_attn_factor of 1\.25",
        ),
        ("qwen2", {"attention__sliding_window": U32(64)}, "64 is shorter than the context of 1024"),
        ("gemma3", {"attention__sliding_window": None}, r"gemma3\.attention\.sliding_window is missing"),
        ("gemma3", {"attention__sliding_window_pattern": [True]}, "layer_types: expected 6 entries, got 1"),
    ],
)
def test_metadata_that_can_t_be_used_is_refused_by_key(
    name: str, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        checkpoint = read(tmp_path, name, **changes)
        make_plan(checkpoint, config_of(checkpoint).wanted_tensors())
    assert "m.gguf" in str(caught.value)


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"general.architecture": "mamba"}, {})
    with pytest.raises(
        UnsupportedModelError, match=r"'mamba' is not supported; known are chatglm, .*gemma3, .*llama, .*qwen3"
    ):
        Checkpoint.read(path)
    with pytest.raises(CheckpointError, match=r"general\.architecture"):
        Checkpoint.read(write(tmp_path / "n.gguf", {}, {}))


@pytest.mark.parametrize(
    ("kind", "architecture", "message"),
    [
        ("adapter", "llama", r"'adapter': is a LoRA adapter for a model of architecture 'llama', .* with --lora as a"),
        ("adapter", "mamba", r"'adapter': is a LoRA adapter for a model of architecture 'mamba'"),
        ("mmproj", "clip", r"'mmproj': is the projector .*; give the model's own file"),
        ("imatrix", "imatrix", r"'imatrix': says what matters of a model's weights"),
    ],
)
def test_what_goes_with_a_model_is_told_from_models(kind: str, architecture: str, message: str, tmp_path: Path) -> None:
    factor = {"blk.0.attn_q.weight.lora_a": array("F32", np.zeros((4, 128), np.float32))}
    metadata = {"general.architecture": architecture, "general.type": kind, "adapter.type": "lora"}
    with pytest.raises(UnsupportedModelError, match=message):
        Checkpoint.read(write(tmp_path / "m.gguf", metadata, factor))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            {"general.architecture": "llama"},
            r"tensor 'blk.0.attn_q.weight.lora_a': is a LoRA adapter for a model of .*",
        ),
        ({"general.architecture": "llama", "general.type": "model"}, r"tensor '.*': is a LoRA adapter for a model of"),
        ({}, r"tensor 'blk.0.attn_q.weight.lora_a': is a LoRA adapter, and no model; give that model, .* with --lora"),
        ({"adapter.type": "lora"}, r"adapter.type 'lora': is a LoRA adapter, and no model"),
    ],
)
def test_an_adapter_is_told_by_its_key_or_its_tensors(
    metadata: dict[str, object], message: str, tmp_path: Path
) -> None:
    factors = {
        f"blk.0.attn_q.weight.{name}": array("F32", np.zeros(shape, np.float32))
        for name, shape in (("lora_a", (4, 128)), ("lora_b", (128, 4)))
    }
    with pytest.raises(UnsupportedModelError, match=message):
        Checkpoint.read(write(tmp_path / "m.gguf", metadata, factors))


def test_a_model_may_say_that_it_is_one(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", gguf_metadata("llama") | {"general.type": "model"}, gguf_tensors("llama", "F16"))
    assert Checkpoint.read(path).config["architectures"] == ["LlamaForCausalLM"]


@pytest.mark.parametrize("name", ["blk.0.ffn_down.bias", "blk.1.attn_q_a.weight", "output.bias", "mm.0.weight"])
def test_a_tensor_that_would_change_the_result_is_not_ignored(name: str, tmp_path: Path) -> None:
    tensors = gguf_tensors("llama", "F16") | {name: array("F32", np.zeros(8, np.float32))}
    path = write(tmp_path / "m.gguf", gguf_metadata("llama"), tensors)
    with pytest.raises(UnsupportedModelError, match=f"tensor '{name}' is not known for 'llama'"):
        Checkpoint.read(path)


@pytest.mark.parametrize("factors", [np.ones(15), np.zeros(16), np.full(16, np.nan)])
def test_factors_that_no_head_can_have_are_refused(factors: np.ndarray, tmp_path: Path) -> None:
    tensors = gguf_tensors("llama", "F16") | {"rope_freqs.weight": array("F32", factors.astype(np.float32))}
    with pytest.raises(CheckpointError, match=r"'rope_freqs\.weight': expected"):
        Checkpoint.read(write(tmp_path / "m.gguf", gguf_metadata("llama"), tensors))


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        (64, (), r"'blk\.0\.attn_qkv\.weight': 64 rows are no \d+ of queries, and of keys and values equal"),
        (2048, ("blk.0.attn_k.weight",), r"'blk\.0\.attn_qkv\.weight' and 'blk\.0\.attn_k\.weight' are both there"),
        (1025, (), r"1025 rows are no \d+ of queries"),
    ],
)
def test_rows_of_queries_keys_and_values_that_can_t_be_told_apart_are_refused(
    rows: int, more: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    tensors = gguf_tensors("llama", "F16")
    apart = {f"blk.0.attn_{part}.weight" for part in "qkv"} - set(more)
    kept = {name: tensor for name, tensor in tensors.items() if name not in apart}
    columns = tensors["blk.0.attn_q.weight"].shape[1]
    kept["blk.0.attn_qkv.weight"] = array("F16", np.zeros((rows, columns), np.float32))
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.read(write(tmp_path / "m.gguf", gguf_metadata("llama"), kept))


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    tensors = gguf_tensors("llama", "F16")
    one = {"output_norm.weight": tensors["output_norm.weight"]}
    paths = write_parts(tmp_path, "m", gguf_metadata("llama"), [tensors, one])
    with pytest.raises(CheckpointError, match=r"'output_norm\.weight' is in m-00001-of-00002\.gguf as well"):
        Checkpoint.read(paths[0])


VALUES = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(width=32),
    st.booleans(),
    st.text(max_size=8),
    st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=8),
    st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=4),
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["gemma3", "llama", "qwen2"]), st.data())
def test_any_metadata_is_understood_or_refused(name: str, data: st.DataObject) -> None:
    metadata = gguf_metadata(name)
    keys = data.draw(st.lists(st.sampled_from(sorted(metadata)), min_size=1, max_size=3))
    file = File(metadata | {key: data.draw(VALUES) for key in keys}, SMALL[name]).encode()
    header = parse_header(io.BytesIO(file), len(file), source="m.gguf")
    with contextlib.suppress(CheckpointError):
        config = gguf_config(header.metadata, header.tensors, "m.gguf")
        model_spec(json_config(config, {}), "m.gguf", file_traits(config, {}))
