"""Gemma 3 in Ollama's own files: what they leave out is as the model was trained, or they are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from unicorn_async.checkpoint.gguf import ollama
from unicorn_async.checkpoint.gguf.config import gguf_config, json_config
from unicorn_async.checkpoint.gguf.model import GgufModel
from unicorn_async.checkpoint.source_tensor import TensorEntry
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.registry import model_spec
from unicorn_async.rotary import RotaryConfig, RotaryScaling
from unicorn_async.tokenizer import ChatMessage
from unicorn_async.tokenizer.worker import make_tokenizer

from .builders import U32, array, write
from .golden_files import gguf_metadata, gguf_tensors

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.models.spec import ModelSpec

SIZES: dict[str, object] = {
    "embedding_length": 64,
    "feed_forward_length": 64,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.sliding_window": 1024,
}
# What the converters of 2025 wrote of a text model, and of one that sees.
TEXT: dict[str, object] = {
    "context_length": 32768,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.global.freq_base": 1e6,
    "rope.local.freq_base": 1e4,
    "final_logit_softcapping": 30.0,
}
SEEING: dict[str, object] = {"context_length": 131072, "mm.tokens_per_image": 256, "vision.block_count": 27}
YARN: dict[str, object] = {"rope__scaling__type": "yarn", "rope__scaling__original_context_length": 4096}
PLAIN: dict[str, object] = {
    "context_length": 131072,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e6,
}


def model_of(num_layers: int, fields: dict[str, object], **changes: object) -> ModelSpec:
    keys = (
        SIZES | fields | {"block_count": num_layers} | {key.replace("__", "."): value for key, value in changes.items()}
    )
    metadata = {"general.architecture": "gemma3", **{f"gemma3.{key}": value for key, value in keys.items()}}
    names = ["token_embd.weight", *(f"blk.{layer}.attn_norm.weight" for layer in range(num_layers))]
    tensors = {name: TensorEntry(name, "F32", (100, 64), 0, 0) for name in names}
    return model_spec(json_config(gguf_config(metadata, tensors, "m.gguf"), {}), "m.gguf")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("num_layers", "fields", "factor"),
    [(34, SEEING, 8.0), (48, SEEING, 8.0), (62, SEEING, 8.0), (26, TEXT, 1.0), (18, TEXT, 1.0), (34, PLAIN, 1.0)],
    ids=["4b", "12b", "27b", "1b", "270m", "other converter"],
)
def test_global_layers_have_the_scale_that_the_model_was_trained_with(
    num_layers: int, fields: dict[str, object], factor: float
) -> None:
    model = model_of(num_layers, fields)
    scaling = RotaryScaling.NONE if factor == 1.0 else RotaryScaling.LINEAR
    assert model.layers[5].attention.rotary == RotaryConfig(1e6, scaling, factor)
    assert model.layers[0].attention.rotary == RotaryConfig(1e4)
    assert (model.layer_windows[0], model.layer_windows[5]) == (1024, 0)
    assert (model.head.norm.eps, model.head.soft_cap) == (1e-6, 0.0)


def test_what_such_a_file_says_goes_before_what_is_known_of_the_model() -> None:
    said = model_of(34, SEEING, rope__scaling__type="linear", rope__scaling__factor=4.0).layers[5].attention.rotary
    assert (said.factor, model_of(26, TEXT, final_logit_softcapping=20.0).head.soft_cap) == (4.0, 20.0)
    bases = {"rope__freq_base": 5e5, "rope__local__freq_base": 5e3}
    newer = model_of(18, {**PLAIN, "final_logit_softcapping": 30.0}, **bases)
    assert [newer.layers[layer].attention.rotary.base for layer in (0, 5)] == [5e3, 5e5]
    assert newer.head.soft_cap == 30.0


@pytest.mark.parametrize(
    ("num_layers", "changes", "message"),
    [
        (30, {}, r"gemma3\.rope\.scaling\.factor: is missing in a file of Ollama's own converter.* 30 layers; take"),
        (34, YARN, r"gemma3\.rope\.scaling\.type: 'yarn' in a file of Ollama's own"),
    ],
)
def test_what_is_not_known_is_refused(num_layers: int, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        model_of(num_layers, SEEING, **changes)


def vocabulary(num_tokens: int) -> dict[str, object]:
    """Gemma's first tokens, with its marks typed as plain text, as these converters do."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["<start_of_turn>", "<end_of_turn>", "user", "model", "\n", "▁", "▁hi", "hi", "Short", "."]
    types = [3, 3, 3, 2, *[6] * 256, *[1] * (len(tokens) - 260)]
    rest = num_tokens - len(tokens) - 1
    tokens += [*(f"<unused{index}>" for index in range(rest)), "<image_soft_token>"]
    ids = {"bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3, "padding_token_id": 0}
    flags = {"add_bos_token": True, "add_eos_token": False, "add_padding_token": False, "add_unknown_token": False}
    found: dict[str, object] = {"model": "llama", "pre": "default", "tokens": tokens, **flags}
    found |= {"token_type": types + [1] * (rest + 1), "scores": [-float(index) for index in range(num_tokens)]}
    return {f"tokenizer.ggml.{key}": value for key, value in {**found, **ids}.items()}


def write_ollama(path: Path) -> Path:
    """Write the golden Gemma 3 as such a file of a model that sees, with a token more than rows."""
    left_out = ("rope.", "attention.layer_norm_rms_epsilon")
    kept = {
        key: value
        for key, value in gguf_metadata("gemma3").items()
        if not key.removeprefix("gemma3.").startswith(left_out)
    }
    # Newer ones say it; without, every sixth layer is global.
    pattern = {"gemma3.attention.sliding_window_pattern": [True, True, False] * 2}
    seeing = {"gemma3.mm.tokens_per_image": U32(4), "gemma3.vision.block_count": U32(1)}
    vision = {
        name: array("F16", np.zeros((8, 8), np.float32))
        for name in ("v.blk.0.attn_k.weight", "v.patch_embedding.weight", "mm.mm_input_projection.weight")
    }
    return write(path, kept | pattern | seeing | vocabulary(513), gguf_tensors("gemma3", "F16") | vision)


def test_the_vision_model_inside_is_skipped_and_text_is_as_the_family_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ollama, "_SCALED", (6,))
    found = GgufModel.read(write_ollama(tmp_path / "sha256-0"))
    assert set(found.skipped) == {
        "v.blk.0.attn_k.weight",
        "v.patch_embedding.weight",
        "mm.mm_input_projection.weight",
    }
    tokenizer = make_tokenizer(found.metadata)
    assert tokenizer.vocab_size == 512
    assert tokenizer.decode(tokenizer.encode("hi"), skip_special=False) == "<bos>hi"  # without a space in front
    messages = [ChatMessage("system", "Short."), ChatMessage("user", " hi"), ChatMessage("assistant", "yes")]
    ids = tokenizer.encode_chat([*messages, ChatMessage("user", "so")])
    assert tokenizer.decode(ids, skip_special=False) == (
        "<bos><start_of_turn>user\nShort.\n\nhi<end_of_turn>\n<start_of_turn>model\nyes<end_of_turn>\n"
        "<start_of_turn>user\nso<end_of_turn>\n<start_of_turn>model\n"
    )
    assert [ids.count(mark) for mark in (260, 261)] == [4, 3]
    assert set(tokenizer.eos_token_ids) == {1, 261}


def test_a_projector_is_refused_in_other_families(tmp_path: Path) -> None:
    tensors = gguf_tensors("qwen2", "F16") | {"mm.weight": array("F32", np.zeros(8, np.float32))}
    with pytest.raises(UnsupportedModelError, match=r"tensor 'mm\.weight' is not known for 'qwen2'"):
        GgufModel.read(write(tmp_path / "m.gguf", gguf_metadata("qwen2"), tensors))
