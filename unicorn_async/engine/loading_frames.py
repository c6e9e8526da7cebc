"""How many steps may go along with a load."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.engine.kv_plan import wanted_context
from unicorn_async.models.activations import residual_bytes

if TYPE_CHECKING:
    from unicorn_async.config import EngineConfig, ModelConfig

_SHARE = 1 / 64  # of the memory, for what steps keep between two layers
_LEAST = 8


def fit_loading_frames(options: EngineConfig, model: ModelConfig, memory_bytes: int) -> EngineConfig:
    """Return options with no more steps of a load than pay on a device with so much memory for a model.

    More than the contexts of all sequences fill have nothing to do. What each of them keeps between two layers has its
    place as long as the model has: all together take no more than a small share of the memory, but eight are allowed.

    Raises:
        ConfigError: the context is longer than the model's.
    """
    useful = -(-options.max_num_seqs * wanted_context(model, options) // options.max_num_batched_tokens)
    bearable = int(memory_bytes * _SHARE) // residual_bytes(model, options.max_num_batched_tokens)
    most = max(_LEAST, min(useful, bearable))
    return replace(options, num_loading_frames=min(options.num_loading_frames, most))
