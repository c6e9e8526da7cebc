"""What a GGUF file says of a golden Gemma 4, as llama.cpp's converter writes it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gguf import GGUFWriter
    from numpy.typing import NDArray

_STILL = 1e30


def add_gemma4(writer: GGUFWriter, config: Mapping[str, object]) -> None:
    """Add heads and rotary embeddings, which the kinds of layers have their own of."""
    numbers, rope = cast("Mapping[str, int]", config), cast("Mapping[str, Any]", config["rope_parameters"])
    kinds = cast("list[str]", config["layer_types"])
    own, whole = numbers["num_key_value_heads"], numbers.get("num_global_key_value_heads")
    counts = own if whole is None else [own if kind == "sliding_attention" else whole for kind in kinds]
    writer.add_head_count_kv(counts)
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(numbers["global_head_dim"])
    for add in (writer.add_key_length_swa, writer.add_value_length_swa, writer.add_rope_dimension_count_swa):
        add(numbers["head_dim"])
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    writer.add_shared_kv_layers(numbers.get("num_kv_shared_layers", 0))
    writer.add_embedding_length_per_layer_input(numbers["hidden_size_per_layer_input"])


def gemma4_widths(config: Mapping[str, object]) -> list[int]:
    """How wide the layers are, if the last ones are wider; none otherwise."""
    if not config.get("use_double_wide_mlp"):
        return []
    numbers = cast("Mapping[str, int]", config)
    width, count, shared = (numbers[key] for key in ("intermediate_size", "num_hidden_layers", "num_kv_shared_layers"))
    return [width] * (count - shared) + [2 * width] * shared


def scale_name(key: str) -> str | None:
    """Return the name of a tensor that multiplies others, None where it is another one."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.router\.(scale|per_expert_scale)", key)
    return match and f"blk.{match[1]}.ffn_{'gate_inp' if match[2] == 'scale' else 'down_exps'}.scale"


def gemma4_factors(config: Mapping[str, object]) -> NDArray[np.float32]:
    """Divisors of the frequencies of global heads."""
    rope = cast("Mapping[str, Any]", config["rope_parameters"])["full_attention"]
    pairs = cast("int", config["global_head_dim"]) // 2
    rotating = int(pairs * rope["partial_rotary_factor"])
    return np.array([1.0] * rotating + [_STILL] * (pairs - rotating), np.float32)
