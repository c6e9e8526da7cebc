"""Typed reading of a GGUF file's metadata, whose author is not trusted."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.fields import shown
from unicorn_async.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.checkpoint.gguf.fields import GgufValue
    from unicorn_async.checkpoint.source_tensor import TensorEntry

# A part of each head may rotate.
HEAD_PARTS = ("chatglm", "deepseek2", "glm4", "glm4moe", "mistral4", "phi3", "qwen35", "qwen35moe", "qwen3next")
HEADS_BY_LAYER = ("gemma4",)  # layers may have other numbers of heads of keys and values, and other widths
WITH_LATENTS = ("deepseek2", "mistral4")  # whose heads have keys and values of other widths than a token keeps
WITH_STILL_PAIRS = ("gemma4",)  # whose rotary frequencies are divided by a number that leaves none of them
# The last layers may predict further tokens.
WITH_PREDICTORS = ("deepseek2", "glm4moe", "qwen35", "qwen35moe", "qwen3next")


class GgufConfig:
    """Metadata and tensors of a model, with getters that complain by key; `source` names the file."""

    def __init__(self, metadata: Mapping[str, GgufValue], tensors: Mapping[str, TensorEntry], source: str) -> None:
        self._metadata = metadata
        self.source = source
        self.tensors = tensors
        self.architecture = self._text("general.architecture")

    def get(self, key: str) -> GgufValue | None:
        """Return the value of `<architecture>.<key>`."""
        return self._metadata.get(f"{self.architecture}.{key}")

    def count(self, key: str, default: int | None = None) -> int:
        """Return a positive integer, which may be said once for each layer."""
        value = self.get(key)
        if isinstance(value, array) and len(set(value)) == 1 and len(value) == self.get("block_count"):
            value = value[0]
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise self.error(key, "a positive integer", value)
        return value

    def index(self, key: str) -> int:
        """Return an integer that is not negative, 0 where the key is absent."""
        value = self.get(key)
        if value is not None and (type(value) is not int or value < 0):
            raise self.error(key, "an integer from 0 on", value)
        return 0 if value is None else value

    def counts(self, key: str) -> tuple[int, ...]:
        """Return integers of which none is negative, one a layer; one integer stands for all."""
        value, num_layers = self.get(key), self.count("block_count")
        if type(value) is int and value > 0:
            return (value,) * num_layers
        if (
            not isinstance(value, array)
            or len(value) != num_layers
            or not all(type(v) is int and v >= 0 for v in value)
        ):
            raise self.error(key, f"a positive integer, or {num_layers} of them", value)
        return tuple(int(count) for count in value)

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
    def num_layers(self) -> int:
        """Layers of the model itself, without those that predict further tokens."""
        behind = self.number("nextn_predict_layers") or 0 if self.architecture in WITH_PREDICTORS else 0
        count = self.count("block_count")
        if not isinstance(behind, int) or not 0 <= behind < count:
            raise self.error("nextn_predict_layers", f"less than the {count} layers", behind)
        return count - behind

    @property
    def feed_forward(self) -> int:
        """Width of the FFN, which files of experts alone may not say: theirs then."""
        name = "feed_forward_length"
        if self.architecture in HEADS_BY_LAYER and isinstance(self.get(name), array):
            return max(self.counts(name))
        is_said = self.get(name) is not None or self.get(f"expert_{name}") is None
        return self.count(name if is_said else f"expert_{name}")

    @property
    def num_rotary_pairs(self) -> int:
        """Pairs of a head that rotate."""
        part = self.count("rope.dimension_count", self.head_dim) if self.architecture in HEAD_PARTS else self.head_dim
        return part // 2

    @property
    def rotary_part(self) -> float:
        """The part of each head that rotates."""
        return self.count("rope.dimension_count", self.head_dim) / self.head_dim

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
