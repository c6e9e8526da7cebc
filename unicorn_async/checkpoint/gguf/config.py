"""The metadata of a GGUF file as the configuration that the models read, with the keys of a config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.fields import shown
from unicorn_async.checkpoint.gguf.plain_strings import PlainStrings
from unicorn_async.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from unicorn_async.checkpoint.gguf.fields import GgufValue
    from unicorn_async.checkpoint.source_tensor import TensorEntry

ROPE_FACTORS = "rope_freqs.weight"
_GEMMA_27B_LAYERS = 62
_SCALES = (1e-6, 1e6)
_COUNTS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
}


class GgufConfig:
    """Metadata and tensors of a model, with getters that complain by key; `source` names the file."""

    def __init__(self, metadata: Mapping[str, GgufValue], tensors: Mapping[str, TensorEntry], source: str) -> None:
        self._metadata = metadata
        self.source = source
        self.tensors = tensors
        self.architecture = self._text("general.architecture")
        if self.architecture not in _ARCHITECTURES:
            raise UnsupportedModelError(
                f"{source}: general.architecture {self.architecture!r} is not supported; "
                f"known are {', '.join(_ARCHITECTURES)}"
            )

    def get(self, key: str) -> GgufValue | None:
        """Return the value of `<architecture>.<key>`."""
        return self._metadata.get(f"{self.architecture}.{key}")

    def count(self, key: str, default: int | None = None) -> int:
        """Return a positive integer."""
        value = self.get(key)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise self.error(key, "a positive integer", value)
        return value

    def number(self, key: str) -> float | None:
        """Return a number, None where the key is absent."""
        value = self.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise self.error(key, "a number", value)
        return value

    def text(self, key: str) -> str | None:
        """Return a string, None where the key is absent."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, "a string", value)
        return value

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.count("attention.key_length", self.count("embedding_length") // self.count("attention.head_count"))

    def has(self, tensor: str) -> bool:
        """Whether the model has a tensor."""
        return tensor in self.tensors

    def token_id(self, kind: str) -> int | None:
        """Return the id of the `bos`, `eos`, … token."""
        value = self._metadata.get(f"tokenizer.ggml.{kind}_token_id")
        return value if type(value) is int else None

    def error(self, key: str, wanted: str, value: GgufValue | None) -> CheckpointError:
        """Return an error about a key's value."""
        name = f"{self.source}: {self.architecture}.{key}"
        if value is None:
            return CheckpointError(f"{name} is missing")
        return CheckpointError(f"{name}: expected {wanted}, got {shown(value)}")

    def unsupported(self, key: str, message: str) -> UnsupportedModelError:
        """Return an error about an option that no model of this package has."""
        return UnsupportedModelError(f"{self.source}: {self.architecture}.{key}: {message}")

    def _text(self, key: str) -> str:
        value = self._metadata.get(key)
        if not isinstance(value, str):
            raise CheckpointError(f"{self.source}: {key}: expected a string, got {shown(value)}")
        return value


def json_config(config: GgufConfig, rope_factors: Sequence[float] | None) -> dict[str, object]:
    """Return what the models read; `rope_factors` are the values of the tensor ROPE_FACTORS where there is one.

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
        "rms_norm_eps": _norm_eps(config),
        "num_key_value_heads": config.count("attention.head_count_kv", config.count("attention.head_count")),
        "head_dim": config.head_dim,
        "vocab_size": embeddings.shape[0],
        "tie_word_embeddings": not config.has("output.weight"),
        "attention_bias": config.has("blk.0.attn_q.bias"),
        "mlp_bias": config.has("blk.0.ffn_up.bias"),
        "bos_token_id": config.token_id("bos"),
        "eos_token_id": config.token_id("eos"),
        "rope_theta": config.number("rope.freq_base"),
        "rope_scaling": _rope_scaling(config, rope_factors),
        "norm_plus_one": False,  # the file's norm weights contain it
    }
    return result | _ARCHITECTURES[config.architecture](config)


def _check(config: GgufConfig) -> None:
    num_layers, head_dim = config.count("block_count"), config.head_dim
    if num_layers > len(config.tensors):
        raise config.error("block_count", f"at most {len(config.tensors)}, the number of tensors", num_layers)
    if num_experts := config.number("expert_count"):
        raise config.unsupported("expert_count", f"{num_experts}: experts are not supported")
    for key in ("attention.value_length", "rope.dimension_count"):
        if config.count(key, head_dim) != head_dim:
            raise config.unsupported(key, f"{config.get(key)} is not supported, only the head's {head_dim}")


def _norm_eps(config: GgufConfig) -> float:
    value = config.number("attention.layer_norm_rms_epsilon")
    if value is None:
        raise config.error("attention.layer_norm_rms_epsilon", "a number", None)
    return value


def _rope_scaling(config: GgufConfig, factors: Sequence[float] | None) -> dict[str, object] | None:
    kind = config.text("rope.scaling.type")
    factor = config.number("rope.scaling.factor") or config.number("rope.scale_linear") or 1.0
    if kind is None:
        kind = "none" if factor == 1.0 else "linear"
    if factors is not None:
        if kind != "none":
            raise config.unsupported("rope.scaling.type", f"{kind!r} beside the tensor {ROPE_FACTORS!r}")
        return {"rope_type": "factors", "factors": list(factors)}
    return None if kind == "none" else {"rope_type": kind, "factor": factor}


def _llama(config: GgufConfig) -> dict[str, object]:
    window = config.number("attention.sliding_window")
    if not window:
        return {"architectures": ["LlamaForCausalLM"]}
    if config.has("blk.0.attn_q.bias"):
        raise config.unsupported("attention.sliding_window", f"{window} beside biases of the attention")
    return {"architectures": ["MistralForCausalLM"], "sliding_window": window}


def _qwen2(config: GgufConfig) -> dict[str, object]:
    return {"architectures": ["Qwen2ForCausalLM"]} | _no_window(config)


def _qwen3(config: GgufConfig) -> dict[str, object]:
    return {"architectures": ["Qwen3ForCausalLM"]} | _no_window(config)


def _no_window(config: GgufConfig) -> dict[str, object]:
    """Qwen's windows are off unless a switch is on, which GGUF files do not have."""
    context = config.count("context_length")
    window = config.count("attention.sliding_window", context)
    if window < context:
        raise config.unsupported("attention.sliding_window", f"{window} is shorter than the context of {context}")
    return {}


def _gemma3(config: GgufConfig) -> dict[str, object]:
    result: dict[str, object] = {
        "architectures": ["Gemma3ForCausalLM"],
        "sliding_window": config.count("attention.sliding_window"),
        "rope_local_base_freq": config.number("rope.freq_base_swa"),
        "query_pre_attn_scalar": _query_scalar(config),
        "attn_logit_softcapping": config.number("attn_logit_softcapping") or None,
        "final_logit_softcapping": config.number("final_logit_softcapping") or None,
    }
    pattern = config.get("attention.sliding_window_pattern")
    if isinstance(pattern, int | None):
        return result | {"sliding_window_pattern": pattern}
    if isinstance(pattern, float | str | tuple | PlainStrings):
        raise config.error("attention.sliding_window_pattern", "an integer or one boolean a layer", pattern)
    kinds = ["sliding_attention" if is_local else "full_attention" for is_local in pattern]
    return result | {"layer_types": kinds}


def _query_scalar(config: GgufConfig) -> float:
    """The files leave it out: it is the head's size, but for the 27B, where it is the hidden size over the heads."""
    scale = config.number("attention.scale")
    if scale:
        if not _SCALES[0] <= scale <= _SCALES[1]:
            raise config.error("attention.scale", f"{_SCALES[0]} to {_SCALES[1]}", scale)
        return scale**-2
    if config.count("block_count") == _GEMMA_27B_LAYERS:
        return config.count("embedding_length") / config.count("attention.head_count")
    return config.head_dim


_ARCHITECTURES: Mapping[str, Callable[[GgufConfig], dict[str, object]]] = {
    "gemma3": _gemma3,
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
}
