"""gpt-oss: mixtures of experts with biases, attention sinks, and a window in every other layer.

Source: the models' config.json and transformers' `modeling_gpt_oss.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.checkpoint.json_config import JsonConfig
from unicorn_async.config import Activation
from unicorn_async.errors import UnsupportedModelError
from unicorn_async.models.blocks.experts import Experts
from unicorn_async.models.families.dense import Dimensions, decoder, local_layers
from unicorn_async.models.rotary_config import read_rotary
from unicorn_async.ops.routing import Routing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.models.spec import ModelSpec

_ROUTER = (("mlp.gate", "mlp.router"),)
_SWIGLU = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}  # of Activation.CLAMPED_SWIGLU
# The scaling of files that say nothing of one.
_YARN: Mapping[str, object] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def gpt_oss(raw: JsonConfig) -> ModelSpec:
    """Read the config.json of a `GptOssForCausalLM`: softmax of the chosen experts alone, in all layers."""
    if not raw.has("rope_parameters") and not raw.has("rope_scaling"):
        raw = JsonConfig({**raw.raw, "rope_scaling": _YARN}, raw.where, raw.traits)
    _check_activation(raw)
    sizes = Dimensions.read(raw, head_dim=64, norm_eps=1e-5)
    rotary = read_rotary(raw, sizes.head_dim, default_base=150_000.0)
    bias, window = raw.flag("attention_bias", True), raw.window("sliding_window", 128)
    attention = {
        is_local: sizes.attention(
            rotary, window=window if is_local else 0, qkv_bias=bias, output_bias=bias, has_sinks=True
        )
        for is_local in (False, True)
    }
    is_apart = raw.traits.are_experts_apart
    experts = Experts(
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        activation=Activation.CLAMPED_SWIGLU,
        routing=Routing(raw.count("num_local_experts", 128), raw.count("num_experts_per_tok", 4), normalises=True),
        norm=sizes.norm("post_attention_layernorm", "ffn_norm"),
        is_stacked=not is_apart,
        by_turns=not is_apart,
        bias=True,
    )
    layers = ((attention[is_local], experts) for is_local in local_layers(raw, sizes.num_layers, 2))
    return decoder(raw, "GptOssForCausalLM", sizes, layers, max_position=131_072, names=_ROUTER)


def _check_activation(raw: JsonConfig) -> None:
    if raw.activation("hidden_act", "silu") is not Activation.SILU:
        raise UnsupportedModelError(
            f"{raw.where}: hidden_act: {raw.text('hidden_act')!r} is not supported, only 'silu'"
        )
    for key, value in _SWIGLU.items():
        if (found := raw.number(key, value)) != value:
            raise UnsupportedModelError(f"{raw.where}: {key}: {found} is not supported, only {value}")
