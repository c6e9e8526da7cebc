"""Mistakes that an engine could make with Gemma 4, as edits of config.json or of the model in transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from golden_edits import change, ones, set_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

_GLOBAL, _LOCAL = ("rope_parameters", "full_attention"), ("rope_parameters", "sliding_attention")


def keep_values(model: PreTrainedModel) -> None:
    """Leave values as long as they are."""
    for layer in model.model.layers:
        layer.self_attn.v_norm.forward = lambda x: x


def norm_values_as_keys(model: PreTrainedModel) -> None:
    """Give values the weights of the norm of keys."""
    for layer in model.model.layers:
        layer.self_attn.v_norm = layer.self_attn.k_norm


def drop_layer_scalars(model: PreTrainedModel) -> None:
    """Leave the stream as it is behind each layer."""
    for layer in model.model.layers:
        layer.layer_scalar.fill_(1.0)


def scale_branches(model: PreTrainedModel) -> None:
    """Multiply what the last block of a layer adds, not the stream."""
    for layer in model.model.layers:
        layer.post_feedforward_layernorm.weight.data *= layer.layer_scalar
        layer.layer_scalar.fill_(1.0)


def change_routers(function: Callable[[torch.nn.Module], None]) -> Callable[[PreTrainedModel], None]:
    """Return an edit of each layer's router."""

    def edit(model: PreTrainedModel) -> None:
        for layer in model.model.layers:
            function(layer.router)

    return edit


def norm_router_as_experts(model: PreTrainedModel) -> None:
    """Route by what the experts read."""
    for layer in model.model.layers:
        layer.router.scale.data *= layer.pre_feedforward_layernorm_2.weight.data


def swap_inputs(model: PreTrainedModel) -> None:
    """Give each network the norm of the other."""
    for layer in model.model.layers:
        one, other = layer.pre_feedforward_layernorm, layer.pre_feedforward_layernorm_2
        one.weight.data, other.weight.data = other.weight.data, one.weight.data


def drop_branch(part: str) -> Callable[[PreTrainedModel], None]:
    """Return an edit that leaves out what stands behind a norm."""

    def edit(model: PreTrainedModel) -> None:
        for layer in model.model.layers:
            layer.get_submodule(part).weight.data.zero_()

    return edit


def share_first(model: PreTrainedModel) -> None:
    """Give layers that share keys those of the first layer of their kind."""
    first, last = (model.model.layers[layer].self_attn for layer in (0, 2))
    first.store_full_length_kv, last.store_full_length_kv = True, False


def scale_earlier(model: PreTrainedModel) -> None:
    """Multiply the stream in front of what a layer gets of its tokens."""
    for layer in model.model.layers:
        layer.post_per_layer_input_norm.weight.data /= layer.layer_scalar


def drop_embedding_scale(model: PreTrainedModel) -> None:
    """Leave out the factor sqrt(hidden_size)."""
    model.get_input_embeddings().embed_scale.fill_(1.0)


_NORMS: dict[str, Callable[[PreTrainedModel], None]] = {
    "no q norm weight": ones("q_norm"),
    "no k norm weight": ones("k_norm"),
    "values without a norm": keep_values,
    "norms multiply by 1 + weight": change("norm", lambda w: w + 1.0),
}
GEMMA4_CONFIG_MISTAKES: dict[str, dict[str, Callable[[dict[str, object]], None]]] = {
    "gemma4": {
        "window one short": set_key("sliding_window", value=31),
        "window one long": set_key("sliding_window", value=33),
        "every pair of global heads rotates": set_key(*_GLOBAL, "partial_rotary_factor", value=1.0),
        "fewer pairs rotate": set_key(*_GLOBAL, "partial_rotary_factor", value=0.125),
        "frequencies as of a smaller head": set_key(*_GLOBAL, "rope_theta", value=1e6**4),
        "global layers with the local base": set_key(*_GLOBAL, "rope_theta", value=1e4),
        "local layers with the global base": set_key(*_LOCAL, "rope_theta", value=1e6),
        "no cap of logits": set_key("final_logit_softcapping", value=None),
    },
    "gemma4_moe": {
        "an expert less": set_key("top_k_experts", value=1),
        "an expert more": set_key("top_k_experts", value=3),
    },
    "gemma4_small": {
        "window one short": set_key("sliding_window", value=31),
        "window one long": set_key("sliding_window", value=33),
    },
}
GEMMA4_MODEL_MISTAKES: dict[str, dict[str, Callable[[PreTrainedModel], None]]] = {
    "gemma4": {
        **_NORMS,
        "values normed as keys": norm_values_as_keys,
        "no layer scalars": drop_layer_scalars,
        "layer scalars of the branch": scale_branches,
        "no embedding scale": drop_embedding_scale,
        "scores scaled by the head's size": change("q_norm", lambda w: w * w.shape[0] ** -0.5),
        "local kv heads swapped": change("v_proj", lambda w: w.roll(w.shape[0] // 2, 0)),
        "another head of queries": change("q_proj", lambda w: w.roll(w.shape[0] // 4, 0)),
        "keys from another place": change("k_proj", lambda w: torch.flip(w, (0,))),
    },
    "gemma4_moe": {
        "no scale of the router's input": change("router.scale", torch.ones_like),
        "no root of the hidden size": change_routers(lambda router: setattr(router, "scalar_root_size", 1.0)),
        "no scales of experts": change("per_expert_scale", torch.ones_like),
        "experts' scales in another order": change("per_expert_scale", lambda w: w.roll(1)),
        "the router behind the experts' norm": norm_router_as_experts,
        "norms swapped": swap_inputs,
        "gate and up swapped": change("experts.gate_up_proj", lambda w: w.roll(w.shape[1] // 2, 1)),
        "no experts": drop_branch("post_feedforward_layernorm_2"),
        "no dense network": drop_branch("post_feedforward_layernorm_1"),
        "no norm of what experts leave": ones("post_feedforward_layernorm_2"),
        "no norm of what the dense network leaves": ones("post_feedforward_layernorm_1"),
        "no norm of both": ones("post_feedforward_layernorm.weight"),
    },
    "gemma4_small": {
        "keys of an earlier layer of the kind": share_first,
        "layers' tables in another order": change("embed_tokens_per_layer", lambda w: w.roll(32, 1)),
        "no rows of tables": change("embed_tokens_per_layer", torch.zeros_like),
        "no scale of tables": lambda model: model.model.embed_tokens_per_layer.embed_scale.fill_(1.0),
        "no product with embeddings": change("per_layer_projection_norm", torch.zeros_like),
        "no norm of the product": ones("per_layer_projection_norm"),
        "no layers' inputs": drop_branch("post_per_layer_input_norm"),
        "no norm of layers' inputs": ones("post_per_layer_input_norm"),
        "layer scalars before layers' inputs": scale_earlier,
        "no embedding scale": drop_embedding_scale,
    },
}
