"""Golden checkpoints as GGUF files, as the converters write them: other names, permuted rows, norms plus one."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np

from tests.golden.cases import CASES
from tests.golden.checkpoints import weights

from .builders import U32, Tensor, array

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tests.golden.cases import Case

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NORMS = {
    True: {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
    False: {"post_attention_layernorm": "ffn_norm"},
}
_ARCHITECTURES = {"gemma3_text": "gemma3", "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


def gguf_tensors(name: str, kind: str) -> dict[str, Tensor]:
    """Return a case's tensors; matrices are of `kind`, all others F32."""
    case = CASES[name]
    architecture = _ARCHITECTURES[str(case.text_config["model_type"])]
    result = {}
    for key, drawn in weights(case):
        new, values = file_name(key, gemma=architecture == "gemma3"), drawn
        if architecture == "gemma3" and new.endswith("norm.weight"):
            values = values + np.float32(1)
        if architecture == "llama" and re.search(r"attn_[qk]\.", new):
            values = interleaved(values, _head_dim(case))
        result[new] = array(kind if values.ndim > 1 else "F32", values)
    factors = llama3_factors(case.text_config, _head_dim(case))
    if factors is not None:
        result["rope_freqs.weight"] = array("F32", factors)
    return result


def gguf_metadata(name: str) -> dict[str, object]:
    """Return a case's metadata, without a tokenizer."""
    config = CASES[name].text_config
    arch = _ARCHITECTURES[str(config["model_type"])]
    heads = config["num_attention_heads"]
    fields: dict[str, object] = {
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config.get("num_key_value_heads", heads),
        "attention.key_length": _head_dim(CASES[name]),
        "attention.value_length": _head_dim(CASES[name]),
        "context_length": config["max_position_embeddings"],
    }
    counts = {key: U32(_int(value)) for key, value in fields.items()}
    numbers = {"attention.layer_norm_rms_epsilon": config["rms_norm_eps"], "rope.freq_base": _rope_base(config)}
    extra = _gemma(config) if arch == "gemma3" else {}
    if config["model_type"] == "mistral":
        extra = {"attention.sliding_window": U32(_int(config["sliding_window"]))}
    every = counts | numbers | extra
    return {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in every.items()}


def _gemma(config: Mapping[str, object]) -> dict[str, object]:
    return {
        "attention.sliding_window": U32(_int(config["sliding_window"])),
        "attention.sliding_window_pattern": U32(3),
        "attention.scale": _int(config["query_pre_attn_scalar"]) ** -0.5,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    }


def file_name(key: str, *, gemma: bool) -> str:
    """Return a tensor's name in GGUF files."""
    stem, _, kind = key.rpartition(".")
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    prefix, part = (f"blk.{match[1]}.", match[2]) if match else ("", stem)
    return f"{prefix}{({**_NAMES, **_NORMS[gemma]})[part]}.{kind}"


def interleaved(values: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Put row i and row i + half of each head side by side."""
    shape = values.shape
    return values.reshape(-1, 2, head_dim // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def llama3_factors(config: Mapping[str, object], head_dim: int) -> NDArray[np.float32] | None:
    """Divisors of the frequencies that stand for Llama 3's scaling, where there is one."""
    scaling = config.get("rope_parameters", config.get("rope_scaling"))
    if not isinstance(scaling, dict) or scaling.get("rope_type") != "llama3":
        return None
    factor, low, high, original = (
        float(scaling[key])
        for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    frequencies = _rope_base(config) ** -(np.arange(0, head_dim, 2) / head_dim)
    rotations = original * frequencies / (2 * math.pi)
    kept = np.clip((rotations - low) / (high - low), 0, 1)
    return (1 / ((1 - kept) / factor + kept)).astype(np.float32)


def _rope_base(config: Mapping[str, object]) -> float:
    parameters = config.get("rope_parameters", config)
    assert isinstance(parameters, dict)
    base = parameters.get("full_attention", parameters)["rope_theta"]
    assert isinstance(base, float)
    return base


def _head_dim(case: Case) -> int:
    config = case.text_config
    return _int(config.get("head_dim") or _int(config["hidden_size"]) // _int(config["num_attention_heads"]))


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
