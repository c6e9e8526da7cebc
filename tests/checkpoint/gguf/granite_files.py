"""Granite 4's layers of Mamba-2 as the converter to GGUF leaves them: rates, norms by groups, matrices taken apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gguf import GGUFWriter

    from tests.golden.checkpoints import Floats

    Named = tuple[str, Floats]

_ATTENDING = ("attention", "full_attention")
STAY_WIDE = ("A_log", "mamba.D", "mamba.norm.weight", "router.layer.weight")  # in F32, whatever shape they have


def granite_hybrid_tensors(config: Mapping[str, object], tensors: Iterable[Named]) -> Iterator[Named]:
    """Yield a directory's tensors under the names that the converter looks for, and changed as it does."""
    sizes = cast("Mapping[str, int]", config)
    shared = "mlp.shared_expert" if sizes["num_local_experts"] else "mlp"
    for name, values in tensors:
        if name.endswith("_moe.input_linear.weight"):
            for part, half in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
                yield name.replace("block_sparse_moe.input_linear.weight", f"mlp.experts.{part}_proj"), half
        elif name.endswith("shared_mlp.input_linear.weight"):
            for part, half in zip(("gate", "up"), np.split(values, 2), strict=True):
                yield name.replace("shared_mlp.input_linear", f"{shared}.{part}_proj"), half
        elif name.endswith("shared_mlp.output_linear.weight"):
            yield name.replace("shared_mlp.output_linear", f"{shared}.down_proj"), values
        elif name.endswith("mamba.A_log"):
            yield name, -np.exp(values)[:, None]
        elif name.endswith("mamba.D"):
            yield name, values[:, None]
        elif name.endswith("mamba.norm.weight"):
            yield name, values.reshape(sizes["mamba_n_groups"], -1)
        elif name.endswith("conv1d.weight"):
            yield name, values[:, 0]
        else:
            yield name.replace("dt_bias", "dt_proj.bias"), values


def add_granite_hybrid(writer: GGUFWriter, config: Mapping[str, object]) -> None:
    """Write the keys of layers of Mamba-2, and which layers have keys and values; positions, if there are any."""
    sizes, kinds = cast("Mapping[str, int]", config), cast("list[str]", config["layer_types"])
    writer.add_head_count_kv([sizes["num_key_value_heads"] if kind in _ATTENDING else 0 for kind in kinds])
    writer.add_expert_shared_feed_forward_length(sizes["shared_intermediate_size"])
    writer.add_ssm_conv_kernel(sizes["mamba_d_conv"])
    writer.add_ssm_state_size(sizes["mamba_d_state"])
    writer.add_ssm_group_count(sizes["mamba_n_groups"])
    writer.add_ssm_inner_size(sizes["mamba_n_heads"] * sizes["mamba_d_head"])
    writer.add_ssm_time_step_rank(sizes["mamba_n_heads"])
    writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")
