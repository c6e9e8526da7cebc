"""A golden RWKV-7 as a GGUF file, as llama.cpp's converter lays it out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

import numpy as np
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGUFWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from tests.golden.checkpoints import Floats

_SHIFTED = ("r", "w", "k", "v", "a", "g")
_GLOBAL = {
    "model.embeddings": "token_embd",
    "model.layers.0.pre_norm": "token_embd_norm",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_PARTS = {
    "attn_norm": "attn_norm",
    "ffn_norm": "attn_norm_2",
    "attn.g_norm": "time_mix_ln",
    "attn.r_proj": "time_mix_receptance",
    "attn.k_proj": "time_mix_key",
    "attn.v_proj": "time_mix_value",
    "attn.o_proj": "time_mix_output",
    "ffn.key": "channel_mix_key",
    "ffn.value": "channel_mix_value",
}
_NETWORK = re.compile(r"attn\.([wavg])_lora\.lora\.([02])\.(weight|bias)")
_NUMBERS = {("0", "weight"): 1, ("2", "weight"): 2, ("2", "bias"): 0}


def write_rwkv7(path: Path, config: Mapping[str, object], tensors: Iterable[tuple[str, Floats]]) -> Path:
    """Write a file whose matrices are F16, but for those of small networks; return its path."""
    writer = GGUFWriter(path, MODEL_ARCH_NAMES[MODEL_ARCH.RWKV7])
    sizes = cast("Mapping[str, int]", config)
    writer.add_context_length(sizes["max_position_embeddings"])
    writer.add_embedding_length(sizes["hidden_size"])
    writer.add_block_count(sizes["num_hidden_layers"])
    writer.add_feed_forward_length(sizes["intermediate_size"])
    writer.add_layer_norm_eps(cast("float", config["norm_eps"]))
    writer.add_wkv_head_size(sizes["head_dim"])
    writer.add_decay_lora_rank(sizes["decay_low_rank_dim"])
    writer.add_iclr_lora_rank(sizes["a_low_rank_dim"])
    writer.add_value_residual_mix_lora_rank(sizes["v_low_rank_dim"])
    writer.add_gate_lora_rank(sizes["gate_low_rank_dim"])
    writer.add_head_count(0)
    for name, values in _converted(tensors):
        is_matrix = values.ndim == 2 and not re.search(r"time_mix_[wavg]\d", name)
        writer.add_tensor(name, values.astype(np.float16 if is_matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _converted(tensors: Iterable[tuple[str, Floats]]) -> Iterator[tuple[str, Floats]]:
    shifts: dict[str, list[Floats]] = {}
    for key, values in tensors:
        module, _, kind = key.rpartition(".")
        if module in _GLOBAL:
            yield f"{_GLOBAL[module]}.{kind}", values
            continue
        _, _, layer, part = key.split(".", 3)
        network = _NETWORK.fullmatch(part)
        if part.startswith("attn.x_"):
            mixes = shifts.setdefault(layer, [])
            mixes.append(values)
            if len(mixes) == len(_SHIFTED):
                yield f"blk.{layer}.time_mix_lerp_fused.weight", np.stack(mixes)
        elif network is not None:
            name, side, what = network.groups()
            if layer == "0" and name == "a":  # llama.cpp wants something there
                yield f"blk.0.time_mix_v{_NUMBERS[side, what]}.weight", values
            yield f"blk.{layer}.time_mix_{name}{_NUMBERS[side, what]}.weight", values
        elif part == "ffn.x_k":
            yield f"blk.{layer}.channel_mix_lerp_k.weight", values
        elif (stem := part.rpartition(".")[0]) in _PARTS:
            yield f"blk.{layer}.{_PARTS[stem]}.{kind}", values
        else:
            yield f"blk.{layer}.time_mix_{kind}.weight", values.ravel()
