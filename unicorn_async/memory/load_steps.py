"""How many steps may go along with a load."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.memory.kv_plan import wanted_context
from unicorn_async.models.activations import residual_bytes

if TYPE_CHECKING:
    from unicorn_async.config import EngineConfig
    from unicorn_async.models.spec import ModelSpec

_SHARE = 1 / 64  # of the memory
_SHARE_OF_REST = 1 / 16  # of what would be the KV cache's


def fit_load_steps(options: EngineConfig, model: ModelSpec, *, total_bytes: int, left_bytes: int) -> EngineConfig:
    """Return options with no more steps of a load than pay on a device, and never fewer than steps of other times.

    One for each sequence, or as many as their contexts fill, have something to do. What those beyond `num_frames` keep
    between two layers, `load_step_bytes`, is a small share of the device's `total_bytes`, and of the `left_bytes` that
    were not asked for.

    Raises:
        ConfigError: the context is longer than the model's.
    """
    full = -(-options.max_seqs * wanted_context(model, options) // options.max_num_batched_tokens)
    bearable = int(min(_SHARE * total_bytes, _SHARE_OF_REST * max(left_bytes, 0)))
    spare = bearable // residual_bytes(model, options.max_num_batched_tokens)
    frames = min(options.num_load_steps, max(full, options.max_seqs), options.num_frames + spare)
    return replace(options, num_load_steps=max(options.num_frames, frames))


def load_step_bytes(options: EngineConfig, model: ModelSpec) -> int:
    """Return what a load's steps keep between two layers, but for those that there is a place for at other times too.

    It is allocated when they are made, and freed after the load.
    """
    spare = options.max_frames - options.num_frames
    return spare * residual_bytes(model, options.max_num_batched_tokens)
