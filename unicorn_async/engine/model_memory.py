"""Everything of a model that lives in device memory, and how much there is of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.engine.model_tensors import matrices_of, vectors_of
from unicorn_async.gpu.arena import Arena
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.models.activations import Activations, activation_bytes
from unicorn_async.ops.kv_cache import KVCache
from unicorn_async.ops.rotary import frequencies
from unicorn_async.ops.sampling import counts_bytes, scratch_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.config import EngineConfig, ModelConfig, RotaryConfig
    from unicorn_async.engine.kv_plan import KVPlan
    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.device import Device
    from unicorn_async.loader.plan import LoadPlan
    from unicorn_async.ops.attention_plan import AttentionPlan
    from unicorn_async.tensor import Tensor, Weight

BLOCK_BYTES = 256 << 20
EVALUATION_ROWS = 64  # logits that evaluation requests may have computed in one step


def max_logit_rows(options: EngineConfig) -> int:
    """Return how many rows of logits a step may compute."""
    return options.max_num_seqs + EVALUATION_ROWS


def workspace_bytes(model: ModelConfig, options: EngineConfig, attention: AttentionPlan) -> int:
    """Return the size of what a model needs beside weights and KV cache, in bytes."""
    rows = max_logit_rows(options)
    activations = activation_bytes(model, options.max_num_batched_tokens, rows)
    return (
        sum(activations.values())
        + attention.partials_nbytes(options.max_num_seqs)
        + scratch_bytes(options.max_num_seqs, model.vocab_size)
        + counts_bytes(options.max_num_seqs, model.vocab_size)
    )


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """The places of a model in device memory; `close` frees them, after the last step.

    `slices` holds the weights' places by destination, for the loader; `weights`, which are vectors, and `matrices`
    are the same as tensors.
    """

    arena: Arena
    tables: Arena
    slices: Mapping[str, ArenaSlice]
    weights: Mapping[str, Tensor]
    matrices: Mapping[str, Weight]
    caches: tuple[KVCache, ...]  # per layer
    freqs: tuple[int, ...]  # per layer
    activations: Activations
    logits: ArenaSlice
    partials: int
    last_token: int
    sample_scratch: int
    counts: int

    @classmethod
    def allocate(
        cls,
        device: Device,
        model: ModelConfig,
        options: EngineConfig,
        plan: LoadPlan,
        kv_plan: KVPlan,
        attention: AttentionPlan,
    ) -> ModelMemory:
        """Allocate all of it.

        Raises:
            OutOfMemoryError: it does not fit after all, because another process was faster.
        """
        total = plan.dest_bytes + kv_plan.nbytes + workspace_bytes(model, options, attention)
        arena = Arena(device.memory, MemoryKind.DEVICE, min(BLOCK_BYTES, 2 * total), name="model")
        tables = Arena(device.memory, MemoryKind.FRAME, 1 << 20, name="tables")
        try:
            slices = {dest.name: arena.allocate(dest.nbytes) for dest in plan.destinations}
            caches = tuple(_cache(arena, kv_plan.layer_bytes[group]) for group in kv_plan.layer_group)
            rows = max_logit_rows(options)
            sizes = activation_bytes(model, options.max_num_batched_tokens, rows)
            places = {name: arena.allocate(size) for name, size in sizes.items()}
            addresses = {name: place.address for name, place in places.items()}
            return cls(
                arena=arena,
                tables=tables,
                slices=slices,
                weights=vectors_of(plan, slices),
                matrices=matrices_of(plan, slices),
                caches=caches,
                freqs=_rotary_tables(tables, model),
                activations=Activations.at(addresses, model, options.max_num_batched_tokens, rows),
                logits=places["logits"],
                partials=arena.allocate(attention.partials_nbytes(options.max_num_seqs)).address,
                last_token=arena.allocate(4 * options.max_num_seqs).address,
                sample_scratch=arena.allocate(scratch_bytes(options.max_num_seqs, model.vocab_size)).address,
                counts=arena.allocate(counts_bytes(options.max_num_seqs, model.vocab_size)).address,
            )
        except BaseException:
            arena.close()
            tables.close()
            raise

    def close(self) -> None:
        """Free everything; nothing on the device may still use it."""
        self.arena.close()
        self.tables.close()


def _cache(arena: Arena, nbytes: int) -> KVCache:
    return KVCache(arena.allocate(nbytes).address, arena.allocate(nbytes).address)


def _rotary_tables(tables: Arena, model: ModelConfig) -> tuple[int, ...]:
    places: dict[RotaryConfig, int] = {}
    for rotary in dict.fromkeys(model.layer_rotary):
        values = frequencies(rotary, model.head_dim)
        place = tables.allocate(len(values))
        assert place.mapped is not None
        place.mapped[:] = values
        places[rotary] = place.address
    return tuple(places[rotary] for rotary in model.layer_rotary)
