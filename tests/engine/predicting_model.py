"""Golden models with a layer that predicts a token more, of which is known what it has to predict."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from tests.golden.cases import CASES
from tests.golden.checkpoints import draw, encode, safetensors_bytes, weights

from .checkpoint_files import write_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Tensors = dict[str, NDArray[np.float32]]

_LEAVING = ("o_proj.weight", "out_proj.weight", "down_proj.weight")  # what a block leaves goes through these
NAMES = {
    "qwen3_5": ("mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm", "layers.0."),
    "glm4_moe": ("model.layers.1.", "enorm", "hnorm", "eh_proj", "shared_head.norm", ""),
    "glm4_moe_lite": ("model.layers.1.", "enorm", "hnorm", "eh_proj", "shared_head.norm", ""),
}


def write_alike(family: str, directory: Path) -> Path:
    """Write a model of one layer that attends, and a predictor with that layer's weights.

    It reads the next token's embedding alone, which is as the norm leaves it: it predicts what the model itself would
    say behind the same tokens without the first.
    """
    case = CASES[family]
    tensors = _of_layer(dict(weights(case)), 1)
    embeddings = tensors["model.embed_tokens.weight"]
    embeddings /= np.sqrt((embeddings**2).mean(axis=1, keepdims=True))
    hidden = embeddings.shape[1]
    own = {name: values for name, values in tensors.items() if name.startswith("model.layers.0.")}
    product = np.hstack([np.eye(hidden, dtype=np.float32), np.zeros((hidden, hidden), np.float32)])
    one = _neutral(family, hidden)
    keys: dict[str, object] = {"num_hidden_layers": 1, "num_nextn_predict_layers": 1, "first_k_dense_replace": 0}
    if "layer_types" in case.config:
        keys = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    tensors |= _predictor(family, own, product, (one, one, tensors["model.norm.weight"]))
    return _write(family, directory, tensors, keys)


def write_hybrid(directory: Path, *, is_right: bool) -> Path:
    """Write a model with states of fixed size, and a predictor of random weights; or one that `is_right` always.

    Then a token follows from the one before alone, by embeddings and the head.
    """
    tensors = dict(weights(CASES["qwen3_5"]))
    hidden = tensors["model.embed_tokens.weight"].shape[1]
    own = {
        name.replace("layers.1.", "layers.0."): values
        for name, values in tensors.items()
        if name.startswith("model.layers.1.")
    }
    product = draw("predictor", (hidden, 2 * hidden), (2 * hidden) ** -0.5)
    one = _neutral("qwen3_5", hidden)
    if is_right:
        product = np.hstack([np.eye(hidden, dtype=np.float32), np.zeros((hidden, hidden), np.float32)])
        tensors, own = (
            {name: values * (not name.endswith(_LEAVING)) for name, values in given.items()} for given in (tensors, own)
        )
    tensors |= _predictor("qwen3_5", own, product, (one, one, tensors["model.norm.weight"]))
    return _write("qwen3_5", directory, tensors, {})


def state_predictor(family: str) -> Tensors:
    """Return the tensors of a layer behind a model's last that predicts once more what the model has said.

    They are called as the converter to GGUF looks for them.
    """
    case = CASES[family]
    tensors, last = dict(weights(case)), case.text_config["num_hidden_layers"]
    own = {
        name.replace("model.layers.1.", "model.layers.0."): values * (not name.endswith(_LEAVING))
        for name, values in tensors.items()
        if name.startswith("model.layers.1.")
    }
    hidden = tensors["model.embed_tokens.weight"].shape[1]
    product = np.hstack([np.zeros((hidden, hidden), np.float32), np.eye(hidden, dtype=np.float32)])
    one = _neutral(family, hidden)
    norms = (one, one, one if family == "qwen3_5" else tensors["model.norm.weight"])  # Qwen's state has had that norm
    found = _predictor("glm4_moe", own, product, norms)
    return {name.replace("model.layers.1.", f"model.layers.{last}."): values for name, values in found.items()}


def _neutral(family: str, size: int) -> NDArray[np.float32]:
    """A norm's weight that changes nothing."""
    return np.full(size, 0.0 if family == "qwen3_5" else 1.0, np.float32)


def _of_layer(tensors: Tensors, layer: int) -> Tensors:
    """Return a model of one layer: with the weights of another one's."""
    here = f"model.layers.{layer}."
    return {
        name.replace(here, "model.layers.0."): values
        for name, values in tensors.items()
        if name.startswith(here) or ".layers." not in name
    }


def _predictor(
    family: str, own: Tensors, product: NDArray[np.float32], norms: tuple[NDArray[np.float32], ...]
) -> Tensors:
    prefix, embedding_norm, hidden_norm, projection, head_norm, layer = NAMES[family]
    named = zip((embedding_norm, hidden_norm, head_norm), norms, strict=True)
    return {
        f"{prefix}{projection}.weight": product,
        **{f"{prefix}{name}.weight": values for name, values in named},
        **{name.replace("model.layers.0.", f"{prefix}{layer}"): values for name, values in own.items()},
    }


def _write(family: str, directory: Path, tensors: Tensors, keys: dict[str, object]) -> Path:
    directory.mkdir(parents=True)
    config = {**CASES[family].config, "torch_dtype": "float32", **keys}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    encoded = [(name, *encode(values.astype(np.float32), "float32")) for name, values in tensors.items()]
    (directory / "model.safetensors").write_bytes(safetensors_bytes(encoded))
    write_tokenizer(directory, tensors["model.embed_tokens.weight"].shape[0])
    return directory
