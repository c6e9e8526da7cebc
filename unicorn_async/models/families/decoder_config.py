"""What the config.json files of the plain decoders have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.config import ModelConfig
from unicorn_async.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from unicorn_async.checkpoint.json_config import JsonConfig

_LAYER_KINDS = ("full_attention", "sliding_attention")


def plain_decoder(
    raw: JsonConfig,
    architecture: str,
    *,
    window: int = 0,
    windows: tuple[int, ...] | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: bool = False,
) -> ModelConfig:
    """Read a pre-norm decoder with a gated FFN; `windows` has a window a layer, `window` one for all (0 = global)."""
    if raw.flag("mlp_bias", False):
        raise UnsupportedModelError(f"{raw.where}: mlp_bias: biases in the FFN are not supported")
    num_layers = raw.num_layers()
    num_heads, num_kv_heads = checked_heads(raw)
    hidden_size = raw.count("hidden_size")
    head_dim = raw.count("head_dim", hidden_size // num_heads or 1)
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=raw.count("intermediate_size"),
        vocab_size=raw.count("vocab_size"),
        max_position=raw.count("max_position_embeddings"),
        norm_eps=raw.number("rms_norm_eps", 1e-6),
        activation=raw.activation("hidden_act", "silu"),
        tie_embeddings=raw.flag("tie_word_embeddings", False),
        layer_windows=windows if windows is not None else (window,) * num_layers,
        layer_rotary=(raw.rotary(),) * num_layers,
        softmax_scale=head_dim**-0.5,
        qk_norm=qk_norm,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        bos_token_id=next(iter(raw.token_ids("bos_token_id")), None),
        eos_token_ids=raw.token_ids("eos_token_id"),
    )


def checked_heads(
    raw: JsonConfig, *, default_heads: int | None = None, default_kv_heads: int | None = None
) -> tuple[int, int]:
    """Return the numbers of query and of key/value heads, the first a multiple of the second."""
    num_heads = raw.count("num_attention_heads", default_heads)
    num_kv_heads = raw.count("num_key_value_heads", default_kv_heads or num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"{raw.where}: num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
        )
    return num_heads, num_kv_heads


def layer_kinds(raw: JsonConfig, num_layers: int) -> list[str] | None:
    """Return `layer_types`, one for each layer, or None where the key is absent."""
    kinds = raw.texts("layer_types")
    if kinds is None:
        return None
    unknown = sorted(set(kinds) - set(_LAYER_KINDS))
    if unknown:
        raise UnsupportedModelError(f"{raw.where}: layer_types {unknown} are not supported; known are {_LAYER_KINDS}")
    if len(kinds) != num_layers:
        raise CheckpointError(f"{raw.where}: layer_types: expected {num_layers} entries, got {len(kinds)}")
    return kinds
