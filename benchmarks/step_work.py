"""What a step of a model must read and compute at least, whatever computes it: bytes and floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from unicorn_async.ops.kv_cache import head_nbytes
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.files import ModelFiles
    from unicorn_async.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class StepWork:
    """Least work of steps; bytes as the weights lie on the device.

    `weight_bytes` are of all weights that a step with a sampled token reads: of embeddings that are not the output head
    too, only a few rows, which do not count. `layer_weights` and `head_weights` are numbers in matrices.
    `kv_token_bytes` are of one position in one layer, `windows` those of the layers, 0 where a layer sees everything.
    """

    weight_bytes: int
    layer_weights: int
    head_weights: int
    kv_token_bytes: int
    windows: tuple[int, ...]

    @classmethod
    def of(cls, model: ModelFiles, options: EngineConfig) -> StepWork:
        """Count for a model that is opened with these options."""
        config = model.config
        skipped = {"embed"} - {config.head.table}
        return cls(
            weight_bytes=sum(dest.nbytes for dest in model.plan.destinations if dest.name not in skipped),
            layer_weights=layer_weights(config),
            head_weights=config.vocab_size * config.hidden_size,
            kv_token_bytes=2 * config.num_kv_heads * head_nbytes(config.head_dim, options.kv_dtype),
            windows=config.layer_windows,
        )

    def kv_bytes(self, context: float) -> float:
        """Keys and values that one token after `context` others has to see, in bytes."""
        return self.kv_token_bytes * sum(min(context, window or context) for window in self.windows)

    def prompt_flops(self, num_tokens: int) -> float:
        """Operations of a prompt in matrices; attention is not counted, and the head has one row."""
        return 2.0 * (num_tokens * self.layer_weights + self.head_weights)

    def decode_flops(self, streams: int) -> float:
        """Operations in matrices of a step that decodes one token of each stream."""
        return 2.0 * streams * (self.layer_weights + self.head_weights)


def layer_weights(config: ModelSpec) -> int:
    """Numbers in the matrices of all layers."""
    weights = (weight for layer in config.layers for weight in layer.weights)
    return sum(prod(weight.shape) for weight in weights if weight.kind is WeightKind.MATRIX)
