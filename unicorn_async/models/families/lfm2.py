"""LFM2: short convolutions, and some layers of attention among them; dense, or of experts behind a few dense layers.

Source: the models' config.json and transformers' `configuration_lfm2.py`, `modeling_lfm2.py` and
`modeling_lfm2_moe.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.config import Activation
from unicorn_async.errors import CheckpointError, UnsupportedModelError
from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.blocks.short_conv import ShortConv
from unicorn_async.models.families.dense import Dimensions, decoder, layer_kinds
from unicorn_async.models.rotary_config import read_rotary
from unicorn_async.ops.routing import Routing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.checkpoint.json_config import JsonConfig
    from unicorn_async.models.blocks.block import Block
    from unicorn_async.models.spec import ModelSpec

_MOST_TAPS = 16
FFN_NAMES = (
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.up_proj", "feed_forward.w3"),
    ("mlp.down_proj", "feed_forward.w2"),
)
_NAMES = (
    ("self_attn.o_proj", "self_attn.out_proj"),
    ("self_attn.q_norm", "self_attn.q_layernorm"),
    ("self_attn.k_norm", "self_attn.k_layernorm"),
    *FFN_NAMES,
)


def lfm2(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of an `Lfm2ForCausalLM`."""
    ffn_size = raw.count("block_ff_dim", raw.count("intermediate_size", 12288))
    sizes = _sizes(raw, _adjusted(raw, ffn_size))
    ffn = sizes.gated_ffn(raw.activation("hidden_act", "silu"), norm="ffn_norm")
    return _decoder(raw, "Lfm2ForCausalLM", sizes, [ffn] * sizes.num_layers)


def lfm2_moe(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of an `Lfm2MoeForCausalLM`."""
    sizes = _sizes(raw, raw.count("intermediate_size", 7168))
    dense, num_dense = sizes.gated_ffn(Activation.SILU, norm="ffn_norm"), raw.index("num_dense_layers", 2)
    experts = Experts(
        hidden_size=sizes.hidden_size,
        intermediate_size=raw.count("moe_intermediate_size", 1792),
        activation=Activation.SILU,
        routing=Routing(
            raw.count("num_experts", 32),
            raw.count("num_experts_per_tok", 4),
            is_sigmoid=True,
            normalises=raw.flag("norm_topk_prob", True),
            scale=raw.factor("routed_scaling_factor", 1.0),
        ),
        norm=sizes.norm("ffn_norm", "ffn_norm"),
        is_corrected=raw.flag("use_expert_bias", True),
    )
    ffns: list[Block] = [dense if layer < num_dense else experts for layer in range(sizes.num_layers)]
    return _decoder(raw, "Lfm2MoeForCausalLM", sizes, ffns, names=_expert_names(experts.routing.num_experts))


def _expert_names(num_experts: int) -> tuple[tuple[str, str], ...]:
    parts = (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))
    return (
        ("mlp.gate", "feed_forward.gate"),
        ("mlp.gate.e_score_correction_bias", "feed_forward.expert_bias"),
        *(
            (f"mlp.experts.{expert}.{part}", f"feed_forward.experts.{expert}.{name}")
            for expert in range(num_experts)
            for part, name in parts
        ),
    )


def _sizes(raw: JsonConfig, intermediate_size: int) -> Dimensions:
    sizes = Dimensions.read(raw, intermediate_size=intermediate_size)
    return replace(sizes, norm_eps=raw.number("norm_eps", 1e-5))


def _decoder(
    raw: JsonConfig,
    architecture: str,
    sizes: Dimensions,
    ffns: Sequence[Block],
    *,
    names: tuple[tuple[str, str], ...] = (),
) -> ModelSpec:
    conv = short_conv(raw, sizes, num_taps=3)
    rotary = read_rotary(raw, sizes.head_dim, default_base=1_000_000.0)
    attention = sizes.attention(rotary, norm="operator_norm", qk_norm=True)
    blocks = (attention if attends else conv for attends in _attending(raw, sizes.num_layers))
    return decoder(
        raw,
        architecture,
        sizes,
        list(zip(blocks, ffns, strict=True)),
        max_position=128_000,
        tied=raw.flag("tie_embedding", True),
        norm="model.embedding_norm",
        names=(*_NAMES, *names),
    )


def short_conv(raw: JsonConfig, sizes: Dimensions, *, num_taps: int, post_norm: str | None = None) -> ShortConv:
    """Return the convolution between two gates; `num_taps` is the default, `post_norm` names a norm behind it."""
    num_taps = raw.count("conv_L_cache", num_taps)
    if not 2 <= num_taps <= _MOST_TAPS:
        raise UnsupportedModelError(f"{raw.where}: conv_L_cache: expected 2 to {_MOST_TAPS}, got {num_taps}")
    return ShortConv(
        sizes.hidden_size,
        num_taps,
        sizes.norm("operator_norm", "input_norm"),
        has_bias=raw.flag("conv_bias", False),
        post_norm=None if post_norm is None else sizes.norm(post_norm, "post_attention_norm"),
    )


def _attending(raw: JsonConfig, num_layers: int) -> list[bool]:
    """Return which layers attend: by `layer_types`, by `full_attn_idxs`, or all."""
    kinds = layer_kinds(raw, num_layers, ("conv", "full_attention"))
    if kinds is not None:
        return [kind == "full_attention" for kind in kinds]
    indices = raw.indices("full_attn_idxs")
    if indices is not None and not all(index < num_layers for index in indices):
        raise CheckpointError(f"{raw.where}: full_attn_idxs: expected less than {num_layers}, got {max(indices)}")
    return [indices is None or layer in indices for layer in range(num_layers)]


def _adjusted(raw: JsonConfig, size: int) -> int:
    """Return the FFN's size; the file may have one of a network without a gate."""
    if not raw.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(raw.factor("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
    multiple = raw.count("block_multiple_of", 256)
    return multiple * -(-size // multiple)
