"""The metadata of a GGUF file as the configuration that the models read, with the keys of a config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.checkpoint.file_traits import FileTraits
from unicorn_async.checkpoint.gguf.architectures import ARCHITECTURES
from unicorn_async.checkpoint.gguf.fields import shown
from unicorn_async.checkpoint.gguf.keys import HEAD_PARTS, HEADS_BY_LAYER, WITH_LATENTS, GgufConfig
from unicorn_async.checkpoint.gguf.names import LONG_FACTORS, ROPE_FACTORS, TILED, WITH_EXPERTS, WITHOUT_ATTENTION
from unicorn_async.checkpoint.gguf.ollama import NORM_EPS, is_ollama_gemma3
from unicorn_async.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unicorn_async.checkpoint.gguf.fields import GgufValue
    from unicorn_async.checkpoint.source_tensor import TensorEntry

_COUNTS = {"hidden_size": "embedding_length", "max_position_embeddings": "context_length"}
# What else GGUF files are, by `general.type`.
_NO_MODELS = {
    "adapter": (
        "is a LoRA adapter{base}, and no model; give that model, and the adapter with"
        " --lora as a directory in PEFT's layout (adapter_config.json, adapter_model.safetensors): adapters in GGUF"
        " files are not supported"
    ),
    "imatrix": "says what matters of a model's weights to who quantises them, and is no model",
    "mmproj": "is the projector for images or audio beside a model, and no model; give the model's own file",
}
_FACTORS = (".lora_a", ".lora_b")  # how an adapter's tensors end, whatever its metadata says
_TENTHS = WITH_LATENTS  # the converter has divided YaRN's weight for all dimensions by 10
_EXACT_YARN = ("gpt-oss",)  # whose bounds between pairs that YaRN changes and others are no whole numbers
_GROWTHS = {"mistral4": 0.1}  # of queries with their positions: the converter leaves out what is the model's own


def gguf_config(metadata: Mapping[str, GgufValue], tensors: Mapping[str, TensorEntry], source: str) -> GgufConfig:
    """Return the getters for a model's metadata; `source` names the file.

    Raises:
        CheckpointError: it does not say which architecture it has.
        UnsupportedModelError: it has one that is not supported, or the file is no model but what goes with one.
    """
    _refuse_others(metadata, tensors, source)
    config = GgufConfig(metadata, tensors, source)
    if config.architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{source}: general.architecture {config.architecture!r} is not supported; "
            f"known are {', '.join(ARCHITECTURES)}"
        )
    return config


def _refuse_others(metadata: Mapping[str, GgufValue], tensors: Mapping[str, TensorEntry], source: str) -> None:
    kind, adapter = metadata.get("general.type"), metadata.get("adapter.type")
    factor = next((name for name in tensors if name.endswith(_FACTORS)), None)
    if isinstance(kind, str) and kind in _NO_MODELS:
        told = f"general.type {kind!r}"
    elif adapter is not None:  # written before there was a general.type
        kind, told = "adapter", f"adapter.type {shown(adapter)}"
    elif factor is not None:
        kind, told = "adapter", f"tensor {factor!r}"
    else:
        return
    base = metadata.get("general.architecture")
    of_base = "" if base is None else f" for a model of architecture {shown(base)}"
    raise UnsupportedModelError(f"{source}: {told}: {_NO_MODELS[kind].format(base=of_base)}")


def json_config(config: GgufConfig, rope_factors: Mapping[str, Sequence[float]]) -> dict[str, object]:
    """Return what the models read; `rope_factors` are the values of those of `factor_tensors` that the model has.

    Raises:
        CheckpointError: a key is missing, of a wrong type, or contradicts the tensors.
        UnsupportedModelError: an option is not supported.
    """
    _check(config)
    embeddings = config.tensors.get("token_embd.weight")
    if embeddings is None:
        raise CheckpointError(f"{config.source}: tensor 'token_embd.weight' is missing")
    result: dict[str, object] = {name: config.count(key) for name, key in _COUNTS.items()}
    result |= {
        "num_hidden_layers": config.num_layers,
        "intermediate_size": config.feed_forward,
        "rms_norm_eps": _norm_eps(config),
        "vocab_size": embeddings.shape[0],
        "tie_word_embeddings": not config.has("output.weight"),
        "mlp_bias": config.has("blk.0.ffn_up.bias"),
        "bos_token_id": config.token_id("bos"),
        "eos_token_id": config.token_id("eos"),
    }
    if config.architecture not in WITHOUT_ATTENTION:
        result |= _attention(config, rope_factors)
    return result | ARCHITECTURES[config.architecture](config, rope_factors)


def _attention(config: GgufConfig, rope_factors: Mapping[str, Sequence[float]]) -> dict[str, object]:
    return {
        "num_attention_heads": config.count("attention.head_count"),
        "num_key_value_heads": _kv_heads(config),
        "head_dim": config.head_dim,
        "attention_bias": config.has("blk.0.attn_q.bias"),
        "rope_theta": config.number("rope.freq_base"),
        "rope_scaling": _rope_scaling(config, rope_factors),
    }


def file_traits(config: GgufConfig, rope_factors: Mapping[str, Sequence[float]]) -> FileTraits:
    """Return what the file's tensors say beside the configuration; `rope_factors` as in `json_config`."""
    return FileTraits(
        norms_hold_one=True,
        are_experts_apart=True,
        are_value_heads_tiled=config.architecture in TILED,
        are_gates_apart=not any(name.endswith(".ssm_in.weight") for name in config.tensors),
        has_decay_rates=True,
        are_group_norms_stacked=True,
        are_shifts_stacked=True,
        is_bonus_flat=True,
        are_latent_heads_split=config.has("blk.0.attn_k_b.weight"),
        is_qkv_fused=config.has("blk.0.attn_qkv.weight"),
        rope_factors=tuple(rope_factors.get(ROPE_FACTORS, ())),
    )


def _kv_heads(config: GgufConfig) -> int:
    """Return how many heads of keys and values a layer has that attends; others say that they have none."""
    if isinstance(config.get("attention.head_count_kv"), int | None):
        return config.count("attention.head_count_kv", config.count("attention.head_count"))
    counts = sorted(set(config.counts("attention.head_count_kv")) - {0})
    if not counts or (len(counts) > 1 and config.architecture not in HEADS_BY_LAYER):
        raise config.unsupported("attention.head_count_kv", f"{counts}: layers have to have equal numbers of heads")
    return counts[0]


def _check(config: GgufConfig) -> None:
    num_layers = config.count("block_count")
    if num_layers > len(config.tensors):
        raise config.error("block_count", f"at most {len(config.tensors)}, the number of tensors", num_layers)
    if config.get("attention.causal") is False:
        raise config.unsupported("attention.causal", "false: only causal attention is supported")
    num_experts = config.number("expert_count")
    if num_experts and config.architecture not in WITH_EXPERTS:
        raise config.unsupported("expert_count", f"{num_experts}: experts are not supported")
    if config.architecture in (*WITHOUT_ATTENTION, *WITH_LATENTS):
        return
    head_dim = config.head_dim
    sizes = ["attention.value_length", *(() if config.architecture in HEAD_PARTS else ("rope.dimension_count",))]
    for key in sizes:
        if config.count(key, head_dim) != head_dim:
            raise config.unsupported(key, f"{config.get(key)} is not supported, only the head's {head_dim}")


def _norm_eps(config: GgufConfig) -> float:
    value = config.number("attention.layer_norm_rms_epsilon") or config.number("attention.layer_norm_epsilon")
    if value is None and is_ollama_gemma3(config):
        return NORM_EPS
    if value is None:
        raise config.error("attention.layer_norm_rms_epsilon", "a number", None)
    return value


def _rope_scaling(config: GgufConfig, rope_factors: Mapping[str, Sequence[float]]) -> dict[str, object] | None:
    kind = config.text("rope.scaling.type")
    factor = config.number("rope.scaling.factor") or config.number("rope.scale_linear") or 1.0
    if kind is None:
        kind = "none" if factor == 1.0 else "linear"
    amplitude = _amplitude(config)
    if amplitude is not None and kind != "yarn" and LONG_FACTORS not in rope_factors:
        raise config.unsupported("rope.scaling.attn_factor", f"{amplitude} without YaRN or LongRoPE is not supported")
    if ROPE_FACTORS in rope_factors and kind != "none":
        raise config.unsupported("rope.scaling.type", f"{kind!r} beside the tensor {ROPE_FACTORS!r}")
    if kind == "none":
        return None
    return {"rope_type": kind, "factor": factor} | (_yarn(config, amplitude) if kind == "yarn" else {})


def _amplitude(config: GgufConfig) -> float | None:
    """The factor on what is rotated; files that are written with every key say 1 where there is none."""
    value = config.number("rope.scaling.attn_factor")
    return None if value == 1.0 else value


def _yarn(config: GgufConfig, amplitude: float | None) -> dict[str, object]:
    own = config.number("rope.scaling.yarn_attn_factor")
    if None not in (own, amplitude) and own != amplitude:
        raise config.unsupported("rope.scaling.attn_factor", f"{amplitude} beside a yarn_attn_factor of {own}")
    scaling: dict[str, object] = {
        "original_max_position_embeddings": config.count("rope.scaling.original_context_length"),
        "beta_fast": config.number("rope.scaling.yarn_beta_fast"),
        "beta_slow": config.number("rope.scaling.yarn_beta_slow"),
        "attention_factor": amplitude if own is None else own,
    }
    if config.architecture in _EXACT_YARN:
        scaling["truncate"] = False
    growth = config.number("attention.temperature_scale")
    if growth := _GROWTHS.get(config.architecture, 0.0) if growth is None else growth:
        scaling["llama_4_scaling_beta"] = growth
    if weight := config.number("rope.scaling.yarn_log_multiplier"):
        if config.architecture in _TENTHS:  # what rotates keeps its size, and scores alone have the square
            return {**_known(scaling), "mscale": 10.0 * weight, "mscale_all_dim": 10.0 * weight}
        scaling |= {"mscale": 1.0, "mscale_all_dim": weight}
    return _known(scaling)


def _known(scaling: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in scaling.items() if value is not None}
