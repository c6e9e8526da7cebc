"""The metadata of a GGUF file as the configuration that the models read, with the keys of a config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.architectures import ARCHITECTURES, HEAD_PARTS
from unicorn_async.checkpoint.gguf.fields import shown
from unicorn_async.checkpoint.gguf.names import ROPE_FACTORS
from unicorn_async.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unicorn_async.checkpoint.gguf.fields import GgufValue
    from unicorn_async.checkpoint.source_tensor import TensorEntry

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
        if self.architecture not in ARCHITECTURES:
            raise UnsupportedModelError(
                f"{source}: general.architecture {self.architecture!r} is not supported; "
                f"known are {', '.join(ARCHITECTURES)}"
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

    @property
    def num_rotary_pairs(self) -> int:
        """Pairs of a head that rotate."""
        part = self.count("rope.dimension_count", self.head_dim) if self.architecture in HEAD_PARTS else self.head_dim
        return part // 2

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
        "rope_scaling": _rope_scaling(config, rope_factors.get(ROPE_FACTORS)),
        "norm_plus_one": False,  # the file's norm weights contain it
    }
    return result | ARCHITECTURES[config.architecture](config, rope_factors)


def _check(config: GgufConfig) -> None:
    num_layers, head_dim = config.count("block_count"), config.head_dim
    if num_layers > len(config.tensors):
        raise config.error("block_count", f"at most {len(config.tensors)}, the number of tensors", num_layers)
    if num_experts := config.number("expert_count"):
        raise config.unsupported("expert_count", f"{num_experts}: experts are not supported")
    sizes = ["attention.value_length", *(() if config.architecture in HEAD_PARTS else ("rope.dimension_count",))]
    for key in sizes:
        if config.count(key, head_dim) != head_dim:
            raise config.unsupported(key, f"{config.get(key)} is not supported, only the head's {head_dim}")


def _norm_eps(config: GgufConfig) -> float:
    value = config.number("attention.layer_norm_rms_epsilon") or config.number("attention.layer_norm_epsilon")
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
    if kind == "none":
        return None
    return {"rope_type": kind, "factor": factor} | (_yarn(config) if kind == "yarn" else {})


def _yarn(config: GgufConfig) -> dict[str, object]:
    scaling: dict[str, object] = {
        "original_max_position_embeddings": config.count("rope.scaling.original_context_length"),
        "beta_fast": config.number("rope.scaling.yarn_beta_fast"),
        "beta_slow": config.number("rope.scaling.yarn_beta_slow"),
        "attention_factor": config.number("rope.scaling.yarn_attn_factor"),
    }
    if growth := config.number("attention.temperature_scale"):
        scaling["llama_4_scaling_beta"] = growth
    if weight := config.number("rope.scaling.yarn_log_multiplier"):
        scaling |= {"mscale": 1.0, "mscale_all_dim": weight}
    return {key: value for key, value in scaling.items() if value is not None}
