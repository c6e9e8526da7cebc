"""Granite 4: layers of Mamba-2 and some of attention among them, or of attention alone; dense, or of experts.

Source: the models' config.json and transformers' `configuration_granitemoehybrid.py` and
`modeling_granitemoehybrid.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.config import Activation
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.blocks.mamba2 import Mamba2
from unicorn_async.models.blocks.shared_expert import SharedExpert
from unicorn_async.models.families.dense import Dimensions, decoder, layer_kinds, refuse_ffn_bias
from unicorn_async.models.rotary_config import read_rotary
from unicorn_async.ops.routing import Routing
from unicorn_async.ops.state_space import MOST_STEP, SsmShape

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.blocks.attention import Attention
    from unicorn_async.models.blocks.block import Block
    from unicorn_async.models.spec import ModelSpec

_MAMBA = ("mamba", "linear_attention")
_KINDS = (*_MAMBA, "attention", "full_attention")
_INFINITY = {"__float__": "Infinity"}  # as transformers writes it
_NAMES = (
    ("mlp.gate_up_proj", "shared_mlp.input_linear"),
    ("mlp.down_proj", "shared_mlp.output_linear"),
    ("shared_mlp.gate_up_proj", "shared_mlp.input_linear"),
    ("shared_mlp.down_proj", "shared_mlp.output_linear"),
    ("mlp.gate", "block_sparse_moe.router.layer"),
    ("mlp.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"),
    ("mlp.experts.down_proj", "block_sparse_moe.output_linear.weight"),
)


def granite_hybrid(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `GraniteMoeHybridForCausalLM`; all tokens pass one FFN, beside experts or alone."""
    refuse_ffn_bias(raw)
    if (kind := raw.text("normalization_function", "rmsnorm")) != "rmsnorm":
        raise UnsupportedModelError(f"{raw.where}: normalization_function: {kind!r} is not supported, only 'rmsnorm'")
    width = raw.count("shared_intermediate_size", 1024)
    sizes = Dimensions.read(raw, intermediate_size=width)
    sizes = replace(sizes, residual_scale=raw.factor("residual_multiplier", 1.0))
    attention, ffn = _attention(raw, sizes), _ffn(raw, sizes)
    kinds = layer_kinds(raw, sizes.num_layers, _KINDS) or ["mamba"] * sizes.num_layers
    recurs = [kind in _MAMBA for kind in kinds]
    blocks: dict[bool, Block] = {False: attention, **({True: _mamba(raw, sizes)} if any(recurs) else {})}
    return decoder(
        raw,
        "GraniteMoeHybridForCausalLM",
        sizes,
        [(blocks[is_mamba], ffn) for is_mamba in recurs],
        max_position=2048,
        embedding_scale=raw.factor("embedding_multiplier", 1.0),
        logit_scale=1.0 / raw.factor("logits_scaling", 1.0),
        names=_NAMES,
    )


def _attention(raw: JsonConfig, sizes: Dimensions) -> Attention:
    positions = raw.text("position_embedding_type") if raw.has("position_embedding_type") else "nope"
    if positions not in ("nope", "rope"):
        raise UnsupportedModelError(
            f"{raw.where}: position_embedding_type: {positions!r} is not supported, only 'nope' and 'rope'"
        )
    bias = raw.flag("attention_bias", False)
    return sizes.attention(
        replace(read_rotary(raw, sizes.head_dim), is_still=positions == "nope"),
        softmax_scale=raw.factor("attention_multiplier", 1.0),
        qkv_bias=bias,
        output_bias=bias,
    )


def _ffn(raw: JsonConfig, sizes: Dimensions) -> Block:
    """Return a layer's FFN: that of all tokens alone where there are no experts."""
    activation, is_apart = raw.activation("hidden_act", "silu"), raw.traits.are_experts_apart
    if not (num_experts := raw.index("num_local_experts", 8)):
        return sizes.gated_ffn(activation, is_fused=not is_apart)
    return Experts(
        hidden_size=sizes.hidden_size,
        intermediate_size=raw.count("intermediate_size", 11_008),
        activation=activation,
        routing=Routing(num_experts, raw.count("num_experts_per_tok", 2), normalises=True),
        norm=sizes.norm("post_attention_layernorm", "ffn_norm"),
        shared=SharedExpert(sizes.intermediate_size, "shared_mlp", is_fused=not is_apart),
        is_stacked=not is_apart,
        residual_scale=sizes.residual_scale,
    )


def _mamba(raw: JsonConfig, sizes: Dimensions) -> Mamba2:
    if raw.activation("hidden_act", "silu") is not Activation.SILU:
        raise UnsupportedModelError(f"{raw.where}: hidden_act: only silu is supported behind the convolution")
    heads, inner = raw.count("mamba_n_heads", 128), raw.count("mamba_expand", 2) * sizes.hidden_size
    is_given = raw.has("mamba_d_head") and raw.raw["mamba_d_head"] != "auto"
    head_dim = raw.count("mamba_d_head") if is_given else max(inner // heads, 1)
    if heads * head_dim != inner:
        raise CheckpointError(
            f"{raw.where}: mamba_n_heads: {heads} heads of {head_dim} are not mamba_expand * hidden_size = {inner}"
        )
    least, most = _step_bounds(raw)
    shape = SsmShape(
        num_groups=raw.count("mamba_n_groups", 1),
        num_heads=heads,
        state_dim=raw.count("mamba_d_state", 256),
        head_dim=head_dim,
        num_taps=raw.count("mamba_d_conv", 4),
        has_rates=raw.traits.has_decay_rates,
        least_step=least,
        most_step=most,
    )
    return Mamba2(
        sizes.hidden_size,
        shape,
        sizes.norm("input_layernorm", "input_norm"),
        sizes.norm_eps,
        conv_bias=raw.flag("mamba_conv_bias", True),
        has_bias=raw.flag("mamba_proj_bias", False),
        residual_scale=sizes.residual_scale,
        is_norm_stacked=raw.traits.are_group_norms_stacked,
    )


def _step_bounds(raw: JsonConfig) -> tuple[float, float]:
    """Return `time_step_limit`, whose second number may be infinity."""
    given = raw.raw.get("time_step_limit")
    bounds = [0.0, math.inf] if given is None else given
    if isinstance(bounds, list):
        bounds = [math.inf if bound == _INFINITY else bound for bound in bounds]
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(_is_bound(bound) for bound in bounds):
        raise CheckpointError(f"{raw.where}: time_step_limit: expected two numbers, got {str(given)[:100]}")
    least, most = bounds
    return float(least), MOST_STEP if most == math.inf else float(most)


def _is_bound(value: object) -> bool:
    """Whether a value is a number that is infinite or fits into a float."""
    return type(value) is float or (type(value) is int and abs(value) <= MOST_STEP)
