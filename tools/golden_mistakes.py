"""Mistakes that an engine could make, as edits of a golden case's config.json or of its model in transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from golden_edits import change, ones, pair_halves, set_key, swap_kv_heads
from golden_gemma4_mistakes import GEMMA4_CONFIG_MISTAKES, GEMMA4_MODEL_MISTAKES
from golden_granite_mistakes import GRANITE_CONFIG_MISTAKES, GRANITE_MODEL_MISTAKES
from golden_latent_mistakes import LATENT_CONFIG_MISTAKES, LATENT_MODEL_MISTAKES
from golden_mixture_mistakes import MIXTURE_CONFIG_MISTAKES, MIXTURE_MODEL_MISTAKES

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel


def drop_embedding_scale(model: PreTrainedModel) -> None:
    """Leave out Gemma's factor sqrt(hidden_size)."""
    model.get_input_embeddings().embed_scale.fill_(1.0)


def flip_embedding(model: PreTrainedModel) -> None:
    """Use another table for the input than for the output."""
    table = model.get_input_embeddings()
    table.weight = torch.nn.Parameter(table.weight.data.flip(0))


_GLOBAL = ("rope_parameters", "full_attention")
_LOCAL = ("rope_parameters", "sliding_attention")
_GEMMA_MODEL_MISTAKES = {
    "norms multiply by weight, not 1 + weight": change("norm", lambda w: w - 1.0),
    "no q norm weight": change("q_norm", torch.zeros_like),
    "no k norm weight": change("k_norm", torch.zeros_like),
    "kv heads swapped": swap_kv_heads,
}
CONFIG_MISTAKES: dict[str, dict[str, Callable[[dict[str, object]], None]]] = {
    "gemma3": {
        "window one short": set_key("sliding_window", value=31),
        "window one long": set_key("sliding_window", value=33),
        "no window": set_key("layer_types", value=["full_attention"] * 6),
        "no global layer": set_key("layer_types", value=["sliding_attention"] * 6),
        "no linear scaling": set_key(*_GLOBAL, "factor", value=1.0),
        "global layers with the local base": set_key(*_GLOBAL, "rope_theta", value=1e4),
        "local layers with the global base": set_key(*_LOCAL, "rope_theta", value=1e6),
        "softmax scale from head_dim": set_key("query_pre_attn_scalar", value=32),
    },
    "gemma3_large": {"window one short": set_key("sliding_window", value=31)},
    "llama": {
        "no llama3 scaling": set_key("rope_scaling", value=None),
        "another original length": set_key("rope_scaling", "original_max_position_embeddings", value=128),
        "another base": set_key("rope_theta", value=20_000.0),
    },
    "llama_tied": {
        "no llama3 scaling": set_key("rope_parameters", value={"rope_type": "default", "rope_theta": 500_000.0}),
        "another base": set_key("rope_parameters", "rope_theta", value=10_000.0),
    },
    "llama_bias": {"another base": set_key("rope_theta", value=20_000.0)},
    "mistral": {
        "window one short": set_key("sliding_window", value=47),
        "no window": set_key("sliding_window", value=None),
    },
    "qwen2": {"another base": set_key("rope_theta", value=10_000.0)},
    "qwen3": {"another base": set_key("rope_parameters", "rope_theta", value=10_000.0)},
}
MODEL_MISTAKES: dict[str, dict[str, Callable[[PreTrainedModel], None]]] = {
    "gemma3": {
        **_GEMMA_MODEL_MISTAKES,
        "no embedding scale": drop_embedding_scale,
        "another table for the input": flip_embedding,
    },
    "gemma3_large": {"kv heads swapped": swap_kv_heads},
    "llama": {"kv heads swapped": swap_kv_heads},
    "llama_tied": {"kv heads swapped": swap_kv_heads, "another table for the input": flip_embedding},
    "llama_bias": {f"no {part} bias": change(f"{part}_proj.bias", torch.zeros_like) for part in ("q", "v", "o")},
    "mistral": {},
    "qwen2": {f"no {part} bias": change(f"{part}_proj.bias", torch.zeros_like) for part in ("q", "v")},
    "qwen3": {
        "kv heads swapped": swap_kv_heads,
        "no q norm weight": change("q_norm", torch.ones_like),
        "no k norm weight": change("k_norm", torch.ones_like),
    },
}


def swap_halves(part: str) -> Callable[[PreTrainedModel], None]:
    """Return an edit that swaps the halves of the rows of a fused projection."""
    return change(part, lambda w: w.roll(w.shape[0] // 2, 0))


def swap_parts(model: PreTrainedModel) -> None:
    """Take C for B of a short convolution, and B for C."""
    change("in_proj", lambda w: torch.cat((w.chunk(3)[1], w.chunk(3)[0], w.chunk(3)[2])))(model)


def scale_decays(model: PreTrainedModel) -> None:
    """Let everything stay."""
    change("A_log", lambda w: w - 20.0)(model)


_ALL_GLOBAL = {"no window": set_key("layer_types", value=["full_attention"] * 4)}
_ALL_LOCAL = {"no global layer": set_key("layer_types", value=["sliding_attention"] * 4)}
_WINDOWS = {
    "window one short": set_key("sliding_window", value=31),
    "window one long": set_key("sliding_window", value=33),
}
_POST_NORMS = {"no post norm of the FFN": ones("post_feedforward_layernorm")}
_YARN = {
    "no YaRN": set_key("rope_scaling", value=None),
    "no amplitude": set_key("rope_scaling", "attention_factor", value=1.0),
    "another factor": set_key("rope_scaling", "factor", value=2.0),
    "another original length": set_key("rope_scaling", "original_max_position_embeddings", value=512),
}
CONFIG_MISTAKES |= (
    MIXTURE_CONFIG_MISTAKES
    | LATENT_CONFIG_MISTAKES
    | GEMMA4_CONFIG_MISTAKES
    | GRANITE_CONFIG_MISTAKES
    | {
        "llama_yarn": _YARN,
        "qwen3_yarn": _YARN,
        "qwen3_wide": {"another base": set_key("rope_theta", value=20_000.0)},
        "gemma2": {
            **_WINDOWS,
            **_ALL_GLOBAL,
            **_ALL_LOCAL,
            "windows in the other layers": set_key("layer_types", value=["full_attention", "sliding_attention"] * 2),
            "no cap of scores": set_key("attn_logit_softcapping", value=None),
            "no cap of logits": set_key("final_logit_softcapping", value=None),
            "softmax scale from head_dim": set_key("query_pre_attn_scalar", value=32),
        },
        "olmo2": {"another base": set_key("rope_theta", value=10_000.0)},
        "olmo3": {
            **_WINDOWS,
            **_ALL_GLOBAL,
            **_ALL_LOCAL,
            "no scaling": set_key("rope_scaling", value=None),
            "no amplitude": set_key("rope_scaling", "attention_factor", value=1.0),
            "linear scaling": set_key("rope_scaling", value={"rope_type": "linear", "factor": 8.0}),
        },
        "phi3": {
            "window one short": set_key("sliding_window", value=47),
            "no window": set_key("sliding_window", value=None),
        },
        "phi4_mini": {
            "the whole head rotates": lambda config: config.update(partial_rotary_factor=1.0, rope_scaling=None),
            "no factors": set_key("rope_scaling", value=None),
            "no amplitude": set_key("rope_scaling", "attention_factor", value=1.0),
            "short factors": lambda config: config.update(
                rope_scaling={**config["rope_scaling"], "long_factor": [1.0 + 0.02 * pair for pair in range(24)]},  # type: ignore[dict-item]
            ),
        },
        "smollm3": {
            "all layers rotate": set_key("no_rope_layers", value=[1] * 5),
            "others stand still": set_key("no_rope_layers", value=[1, 1, 0, 1, 1]),
        },
        "granite": {
            "no embedding multiplier": set_key("embedding_multiplier", value=1.0),
            "no attention multiplier": set_key("attention_multiplier", value=32**-0.5),
            "no residual multiplier": set_key("residual_multiplier", value=1.0),
            "no logits scaling": set_key("logits_scaling", value=1.0),
        },
        "glm": {"the whole head rotates": set_key("partial_rotary_factor", value=1.0)},
        "glm4": {"the whole head rotates": set_key("partial_rotary_factor", value=1.0)},
        "ministral3": {
            "no scaling": set_key(
                "rope_parameters",
                value={
                    "rope_type": "default",
                    "rope_theta": 1e6,
                    "llama_4_scaling_beta": 0.2,
                    "original_max_position_embeddings": 64,
                },
            ),
            "an amplitude": set_key("rope_parameters", "mscale_all_dim", value=0.0),
            "queries do not grow": set_key("rope_parameters", "llama_4_scaling_beta", value=0.0),
        },
        "cohere2": {
            **_WINDOWS,
            **_ALL_GLOBAL,
            **_ALL_LOCAL,
            "no logit scale": set_key("logit_scale", value=1.0),
        },
        "exaone4": {
            **_WINDOWS,
            "all layers rotate": lambda config: config.update(
                sliding_window=512, layer_types=["sliding_attention"] * 4
            ),
            "no scaling": set_key("rope_scaling", value=None),
        },
        "seed_oss": {"another base": set_key("rope_theta", value=20_000.0)},
        "ernie4_5": {"another base": set_key("rope_theta", value=10_000.0)},
        "qwen3_5": {
            "the whole head rotates": set_key("rope_parameters", "partial_rotary_factor", value=1.0),
            "another base": set_key("rope_parameters", "rope_theta", value=100.0),
        },
        "lfm2": {
            "another base": set_key("rope_theta", value=10_000.0),
            "norms that count more": set_key("norm_eps", value=1e-2),
        },
        "lfm3": {
            **_WINDOWS,
            "no window": set_key("layer_types", value=["conv", "full_attention", "conv", "full_attention"]),
            "another base": set_key(*_LOCAL, "rope_theta", value=1e6),
            "the whole head rotates": set_key(*_GLOBAL, "partial_rotary_factor", value=1.0),
            "frequencies of the part that rotates": set_key(*_GLOBAL, "rope_theta", value=1e6),
            "norms that count more": set_key("norm_eps", value=1e-2),
        },
    }
)
MODEL_MISTAKES |= (
    MIXTURE_MODEL_MISTAKES
    | LATENT_MODEL_MISTAKES
    | GEMMA4_MODEL_MISTAKES
    | GRANITE_MODEL_MISTAKES
    | {
        "llama_yarn": {"kv heads swapped": swap_kv_heads},
        "qwen3_wide": {"no q norm weight": ones("q_norm"), "no k norm weight": ones("k_norm")},
        "qwen3_yarn": {"no q norm weight": ones("q_norm"), "no k norm weight": ones("k_norm")},
        "gemma2": {
            "norms multiply by weight, not 1 + weight": change("norm", lambda w: w - 1.0),
            "kv heads swapped": swap_kv_heads,
        },
        "olmo2": {**_POST_NORMS, "no q norm weight": ones("q_norm"), "no k norm weight": ones("k_norm")},
        "olmo3": {**_POST_NORMS, "no q norm weight": ones("q_norm"), "no k norm weight": ones("k_norm")},
        "phi3": {"gate and up swapped": swap_halves("gate_up_proj")},
        "phi4_mini": {"gate and up swapped": swap_halves("gate_up_proj")},
        "smollm3": {"kv heads swapped": swap_kv_heads},
        "granite": {"kv heads swapped": swap_kv_heads},
        "glm": {f"no {part} bias": change(f"{part}_proj.bias", torch.zeros_like) for part in ("q", "v")},
        "glm4": {
            "gate and up swapped": swap_halves("gate_up_proj"),
            "no norm of the attention's result": ones("post_self_attn_layernorm"),
            "no norm of the FFN's result": ones("post_mlp_layernorm"),
        },
        "ministral3": {},
        "cohere2": {"kv heads swapped": swap_kv_heads},
        "exaone4": {**_POST_NORMS, "no q norm weight": ones("q_norm"), "no k norm weight": ones("k_norm")},
        "ernie4_5": {"rotary pairs in halves": pair_halves, "another table for the input": flip_embedding},
        "seed_oss": {f"no {part} bias": change(f"{part}_proj.bias", torch.zeros_like) for part in ("q", "v")},
        "qwen3_5": {
            "taps the other way round": change("conv1d.weight", lambda w: w.flip(-1)),
            "no decay": scale_decays,
            "no bias of the decay": change("dt_bias", torch.zeros_like),
            "all is written": change("in_proj_b", lambda w: w * 100.0),
            "value heads in another order": change("in_proj_z", lambda w: w.roll(48, 0)),
            "no norm of what heads find": ones("linear_attn.norm"),
            "norms multiply by weight, not 1 + weight": change("layernorm", lambda w: w - 1.0),
            "gates in place of queries": change("q_proj", lambda w: w.roll(64, 0)),
            "no q norm weight": change("q_norm", torch.zeros_like),
            "no k norm weight": change("k_norm", torch.zeros_like),
        },
        "lfm2": {
            "taps the other way round": change("conv.conv.weight", lambda w: w.flip(-1)),
            "a tap less": change("conv.conv.weight", lambda w: w * torch.tensor([0.0, 1.0, 1.0])),
            "B and C swapped": swap_parts,
            "no bias of the convolution": change("conv.conv.bias", torch.zeros_like),
            "no bias before it": change("in_proj.bias", torch.zeros_like),
            "no bias behind it": change("conv.out_proj.bias", torch.zeros_like),
            "no q norm weight": ones("q_layernorm"),
            "no k norm weight": ones("k_layernorm"),
        },
        "lfm3": {
            "a tap less": change("conv.conv.weight", lambda w: w * torch.tensor([0.0, *[1.0] * 6])),
            "gates half open": change("g_proj", torch.zeros_like),
            "gates of other heads": change("g_proj", lambda w: w.flip(0)),
            "no norm behind a block": ones("post_operator_norm"),
            "no norm behind the FFN": ones("post_ffn_norm"),
            "no q norm weight": ones("q_norm"),
            "no k norm weight": ones("k_norm"),
            **{f"no {part} bias": change(f"{part}_proj.bias", torch.zeros_like) for part in ("q", "k", "v", "o")},
        },
    }
)
