"""What llama.cpp's converter does to models with latent attention: keys for sizes, and each head's matrices apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from gguf import ExpertGatingFuncType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gguf import GGUFWriter

    from tests.golden.checkpoints import Floats


def add_latents(writer: GGUFWriter, config: Mapping[str, object]) -> None:
    """Write sizes of heads and of latents, and what routers do."""
    sizes = cast("Mapping[str, int]", config)
    rotary, latent = sizes["qk_rope_head_dim"], sizes["kv_lora_rank"]
    if sizes["q_lora_rank"]:
        writer.add_q_lora_rank(sizes["q_lora_rank"])
    writer.add_kv_lora_rank(latent)
    writer.add_key_length(latent + rotary)
    writer.add_value_length(latent)
    writer.add_key_length_mla(sizes["qk_nope_head_dim"] + rotary)
    writer.add_value_length_mla(sizes["v_head_dim"])
    writer.add_leading_dense_block_count(sizes["first_k_dense_replace"])
    writer.add_expert_shared_count(sizes["n_shared_experts"])
    writer.add_expert_weights_scale(float(sizes["routed_scaling_factor"]))
    writer.add_expert_weights_norm(bool(config["norm_topk_prob"]))
    if "n_group" in sizes:
        writer.add_expert_group_count(sizes["n_group"])
        writer.add_expert_group_used_count(sizes["topk_group"])
    if config["model_type"] == "deepseek_v3":
        writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)


def latents_apart(config: Mapping[str, object], tensors: Iterable[tuple[str, Floats]]) -> Iterator[tuple[str, Floats]]:
    """Yield tensors, those of keys and of values of all heads apart; keys' have rows for columns."""
    plain, value = cast("tuple[int, int]", (config["qk_nope_head_dim"], config["v_head_dim"]))
    for name, values in tensors:
        if not name.endswith("kv_b_proj.weight"):
            yield name, values
            continue
        heads = values.reshape(-1, plain + value, values.shape[1])
        yield name.replace("kv_b_proj", "k_b_proj"), np.ascontiguousarray(heads[:, :plain].transpose(0, 2, 1))
        yield name.replace("kv_b_proj", "v_b_proj"), np.ascontiguousarray(heads[:, plain:])
