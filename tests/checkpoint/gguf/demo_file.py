"""The bundled demo model as a GGUF file of any type, and as a Hugging Face directory of another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

import unicorn_async.demo
from tests.checkpoint.builders import file_bytes, values
from tests.tokenizer.gguf.metadata import sentencepiece_metadata
from unicorn_async.checkpoint.safetensors import read_header

from .builders import U32, array, write
from .encoders import encoded
from .golden_files import file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from .builders import Tensor

DEMO_MODEL = Path(unicorn_async.demo.__file__).resolve().parent / "model"
EMBEDDINGS = "model.embed_tokens.weight"
_AS_THE_MATRICES = ("F32", "F16", "BF16", "Q8_0", "Q6_K")
_NAMED = {"bos": "<bos>", "eos": "<eos>", "padding": "<pad>", "unknown": "<unk>"}


def demo_weights() -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield every tensor of the demo model, which are BF16 in its file."""
    data = (DEMO_MODEL / "model.safetensors").read_bytes()
    for entry in read_header(DEMO_MODEL / "model.safetensors").values():
        content = data[entry.offset : entry.offset + entry.nbytes]
        yield entry.name, values(entry.dtype, content).reshape(entry.shape)


def table_kind(kind: str) -> str:
    """Return the type of the embeddings, which are the output head too, in a file of a type: as llama.cpp has it."""
    return kind if kind in _AS_THE_MATRICES else "Q6_K"


def encoded_demo(kind: str, encode: Callable[[str, NDArray[np.float32]], Tensor] = encoded) -> dict[str, Tensor]:
    """Return the demo model's tensors as a GGUF file has them whose matrices are of `kind`; norms are F32."""
    return {
        name: array("F32", weight + np.float32(1))
        if weight.ndim == 1
        else encode(table_kind(kind) if name == EMBEDDINGS else kind, weight)
        for name, weight in demo_weights()
    }


def mixed_demo() -> dict[str, Tensor]:
    """Return the model's tensors in the mix of types that files named Q4_K_M have: some layers with more bits."""
    weights = list(demo_weights())
    num_layers = sum(name.endswith("input_layernorm.weight") for name, _ in weights)
    found = {}
    for name, drawn in weights:
        if drawn.ndim == 1:
            found[name] = array("F32", drawn + np.float32(1))
            continue
        layer, eighth = int(name.split(".")[2]) if name != EMBEDDINGS else 0, num_layers // 8
        more = layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2
        wide = name == EMBEDDINGS or (more and ("v_proj" in name or "down_proj" in name))
        found[name] = encoded("Q6_K" if wide else "Q4_K", drawn)
    return found


def write_demo_gguf(path: Path, kind: str, tensors: Mapping[str, Tensor] | None = None) -> Path:
    """Write a GGUF file whose matrices are of `kind`; `tensors` are those of `encoded_demo`, if they are there."""
    tensors = encoded_demo(kind) if tensors is None else tensors
    return write(path, _metadata(), {file_name(name, gemma=True): tensor for name, tensor in tensors.items()})


def write_demo_directory(directory: Path, kind: str) -> Path:
    """Write the demo model as F32 or F16 beside its own tokenizer and configuration."""
    shutil.copytree(DEMO_MODEL, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = {name: (kind, weight.shape, array(kind, weight).data) for name, weight in demo_weights()}
    (directory / "model.safetensors").write_bytes(file_bytes(tensors))
    return directory


def _metadata() -> dict[str, object]:
    config = json.loads((DEMO_MODEL / "config.json").read_text())
    counts = {
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.value_length": "head_dim",
        "context_length": "max_position_embeddings",
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": "sliding_window_pattern",
    }
    fields: dict[str, object] = {key: U32(config[name]) for key, name in counts.items()}
    fields["attention.layer_norm_rms_epsilon"] = config["rms_norm_eps"]
    fields["rope.freq_base"] = config["rope_theta"]
    fields["rope.freq_base_swa"] = config["rope_local_base_freq"]
    result = {"general.architecture": "gemma3"} | {f"gemma3.{key}": value for key, value in fields.items()}
    return result | _tokenizer()


def _tokenizer() -> dict[str, object]:
    """The vocabulary with SentencePiece's space, joined in the order of its merges.

    GGUF knows no pre-tokenizer for such a vocabulary: where words are not one space apart, it may cut otherwise.
    """
    backend = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    merges = json.loads(backend.to_str())["model"]["merges"]
    ranks = {"".join(pair): -float(rank) for rank, pair in reversed(list(enumerate(merges)))}
    metadata = sentencepiece_metadata(backend, ranks, _NAMED, add_space_prefix=False)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    metadata["tokenizer.ggml.tokens"] = [token.replace(" ", "▁") for token in tokens]
    settings = json.loads((DEMO_MODEL / "tokenizer_config.json").read_text())
    return metadata | {"tokenizer.chat_template": settings["chat_template"]}
