"""The least work of a model's steps: bytes that they read and write, and operations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from routing import Routing

from unicorn_async.models.blocks.dense_and_experts import DenseAndExperts
from unicorn_async.models.blocks.expert_weights import DOWN, DOWN_BIAS, GATE, GATE_UP, GATE_UP_BIAS, UP
from unicorn_async.models.blocks.experts import Experts
from unicorn_async.ops.kv_cache import head_nbytes
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.files import ModelFiles
    from unicorn_async.models.spec import Layer, ModelSpec


@dataclass(frozen=True, slots=True)
class KeysAndValues:
    """What a layer that attends reads: `token_bytes` of a position, as far as its `window` goes; 0 = all."""

    window: int
    token_bytes: int

    def nbytes(self, context: float) -> float:
        """Bytes that one token after `context` others has to see."""
        return self.token_bytes * min(context, self.window or context)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts of all layers in which a token has as many of as many; `nbytes` are of all of them in these layers."""

    num_experts: int
    num_chosen: int
    nbytes: int

    def nbytes_hit(self, tokens: int) -> float:
        """Bytes of the experts that so many tokens choose, if they choose as if they drew."""
        return self.nbytes / self.num_experts * Routing(self.num_experts, self.num_chosen).distinct(tokens)


@dataclass(frozen=True, slots=True)
class StepWork:
    """Least work of steps; bytes as the weights lie on the device.

    `weight_bytes` are of all weights but experts that a step with a sampled token reads: of embeddings that are not the
    output head too, only a few rows, which do not count; a layer that predicts a token more is no part of such a step.
    Of the `mixtures` a step reads what its tokens choose. `layer_weights` and `head_weights` are numbers in matrices
    that a token passes, those of its own experts among them. `attending` are the layers with keys and values.
    `state_bytes` are what all other layers keep of a sequence, which does not grow with it.
    """

    weight_bytes: int
    mixtures: tuple[Mixture, ...]
    layer_weights: int
    head_weights: int
    attending: tuple[KeysAndValues, ...]
    state_bytes: int

    @classmethod
    def of(cls, model: ModelFiles, options: EngineConfig) -> StepWork:
        """Count for a model that is opened with these options."""
        config = model.config
        layers, groups = config.layers[: config.num_layers], config.memory_groups()
        routings = expert_routings(layers)
        every_step, hit = 0, Counter[Routing]()
        for dest in model.plan.destinations:
            if dest.whole in routings:
                hit[routings[dest.whole]] += dest.nbytes
            elif groups[dest.whole] is not MemoryGroup.EMBEDDINGS and not _is_predictors(dest.name, config):
                every_step += dest.nbytes
        return cls(
            weight_bytes=every_step,
            mixtures=tuple(Mixture(one.num_experts, one.num_chosen, nbytes) for one, nbytes in hit.items()),
            layer_weights=sum(layer_weights(layer) for layer in layers),
            head_weights=config.vocab_size * config.hidden_size,
            attending=tuple(keys_and_values(layer, options) for layer in layers if layer.attends),
            state_bytes=sum(layer.fixed.nbytes for layer in layers if layer.fixed is not None),
        )

    @classmethod
    def of_report(cls, found: Mapping[str, Any]) -> StepWork:
        """Read what `asdict` made of one; its keys and types are checked already."""
        return cls(
            found["weight_bytes"],
            tuple(Mixture(one["num_experts"], one["num_chosen"], one["nbytes"]) for one in found["mixtures"]),
            found["layer_weights"],
            found["head_weights"],
            tuple(KeysAndValues(one["window"], one["token_bytes"]) for one in found["attending"]),
            found["state_bytes"],
        )

    def weight_bytes_of(self, tokens: int) -> float:
        """Bytes of the weights that a step of so many tokens reads; of experts those to be expected."""
        return self.weight_bytes + sum(mixture.nbytes_hit(tokens) for mixture in self.mixtures)

    def kv_bytes(self, context: float) -> float:
        """Keys and values that one token after `context` others has to see, in bytes."""
        return sum(layer.nbytes(context) for layer in self.attending)

    @property
    def moved_state_bytes(self) -> int:
        """States of a stream, read and written, in bytes."""
        return 2 * self.state_bytes

    def step_bytes(self, streams: int, context: float) -> float:
        """Bytes of a step that decodes one token of each stream, behind so many others each."""
        return self.weight_bytes_of(streams) + streams * (self.kv_bytes(context) + self.moved_state_bytes)

    def prompt_flops(self, num_tokens: int) -> float:
        """Operations of a prompt in matrices; attention and states are not counted, and the head has one row."""
        return 2.0 * (num_tokens * self.layer_weights + self.head_weights)

    def decode_flops(self, streams: int) -> float:
        """Operations in matrices of a step that decodes one token of each stream."""
        return 2.0 * streams * (self.layer_weights + self.head_weights)


def mixture_of(layer: Layer) -> Experts | None:
    """Return the mixture of a layer that has one."""
    parts = [block.experts if isinstance(block, DenseAndExperts) else block for block in layer.blocks]
    return next((part for part in parts if isinstance(part, Experts)), None)


def expert_routings(layers: tuple[Layer, ...]) -> dict[str, Routing]:
    """Return how tokens choose, by the destinations of experts' weights and biases."""
    found = {}
    for number, layer in enumerate(layers):
        if (experts := mixture_of(layer)) is not None:
            routing = Routing(experts.routing.num_experts, experts.routing.num_chosen)
            names = (GATE_UP, GATE, UP, DOWN, GATE_UP_BIAS, DOWN_BIAS)
            found |= {f"layers.{number}.{name}": routing for name in names}
    return found


def layer_weights(layer: Layer) -> int:
    """Numbers in the matrices of a layer that a token passes."""
    matrices = [weight for weight in layer.weights if weight.kind is WeightKind.MATRIX]
    chosen = sum(prod(weight.shape) for weight in matrices if weight.group is MemoryGroup.EXPERTS)
    if (experts := mixture_of(layer)) is not None:
        chosen = chosen // experts.routing.num_experts * experts.routing.num_chosen
    return chosen + sum(prod(weight.shape) for weight in matrices if weight.group is not MemoryGroup.EXPERTS)


def keys_and_values(layer: Layer, options: EngineConfig) -> KeysAndValues:
    """Return what a layer that attends reads, its own keys and values or those of another layer."""
    attention = layer.attention
    token_bytes = 2 * attention.num_kv_heads * head_nbytes(attention.head_dim, options.kv_dtype)
    return KeysAndValues(attention.window, token_bytes)


def _is_predictors(dest: str, config: ModelSpec) -> bool:
    return config.predicts and dest.startswith(f"layers.{config.num_layers}.")
