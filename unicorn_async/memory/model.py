"""Everything of a model that lives in device memory, and how much there is of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.gpu.arena import Arena
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.gpu.zero_memory import zero_memory
from unicorn_async.memory.kv_plan import wanted_context
from unicorn_async.memory.plan import fixed_name, max_logit_rows
from unicorn_async.models.activations import Activations, Residual, residual_names
from unicorn_async.models.blocks.expert_routes import ROUTED
from unicorn_async.ops.attention_op import DecodeScratch
from unicorn_async.ops.rotary import frequencies
from unicorn_async.weights.tensors import matrices_of, vectors_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.device import Device
    from unicorn_async.memory.kv_pool import KVPool
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.ops.kv_cache import KVCache
    from unicorn_async.rotary import RotaryConfig
    from unicorn_async.tensor import Tensor, Weight
    from unicorn_async.weights.plan import LoadPlan


@dataclass(frozen=True, slots=True)
class ResidualPlaces:
    """The memory of one step's residual stream."""

    hidden: ArenaSlice
    branch: ArenaSlice

    @property
    def addresses(self) -> Residual:
        """Where it lies, as what is recorded needs it."""
        return Residual(self.hidden.address, self.branch.address)


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """The places of a model in device memory, all borrowed but the tables; `close` frees these, after the last step.

    `weights` are vectors, `matrices` all others. They may still be without memory: `places` grows. `kv_pool` is None
    where another device attends.
    """

    places: Mapping[str, ArenaSlice]
    kv_pool: KVPool | None
    tables: Arena
    weights: Mapping[str, Tensor]
    matrices: Mapping[str, Weight]
    freqs: Mapping[tuple[RotaryConfig, int], int]  # for heads of a size
    activations: Activations
    residuals: tuple[ResidualPlaces, ...]  # per frame, and one more where steps take turns at a load's layers
    attended: ArenaSlice  # the activation `attention`
    logits: ArenaSlice
    decode_scratch: DecodeScratch  # zeros where another device attends, or nothing does
    last_token: int
    sample_scratch: int
    counts: int
    pooled_sums: int
    predicted: int  # (states) u32 that nobody reads

    @classmethod
    def of(
        cls,
        device: Device,
        model: ModelSpec,
        options: EngineConfig,
        plan: LoadPlan,
        places: Mapping[str, ArenaSlice],
        kv_pool: KVPool | None,
        workspace: Iterable[str],
    ) -> ModelMemory:
        """Name the `places` of everything that was planned, and make the tables beside it.

        Those of the `workspace` are there already; others may come while this runs.

        Raises:
            OutOfMemoryError: the tables do not fit; nothing stays allocated.
            DeviceLostError: the device was lost meanwhile.
        """
        tables = Arena(device.memory, MemoryKind.ARGUMENTS, 1 << 20, name="tables")
        try:
            addresses = {name: places[name].address for name in workspace}
            for name in ("split_counters", ROUTED):
                if name in places:
                    zero_memory(device, places[name])
            rows = max_logit_rows(options)
            frames = [residual_names(frame) for frame in range(options.num_residuals)]
            return cls(
                places=places,
                kv_pool=kv_pool,
                tables=tables,
                weights=vectors_of(plan, places),
                matrices=matrices_of(plan, places),
                freqs=_rotary_tables(tables, model, wanted_context(model, options)),
                activations=Activations.at(addresses, model, options.max_num_batched_tokens, rows),
                residuals=tuple(ResidualPlaces(places[hidden], places[branch]) for hidden, branch in frames),
                attended=places["attention"],
                logits=places["logits"],
                decode_scratch=DecodeScratch(addresses.get("partials", 0), addresses.get("split_counters", 0)),
                last_token=addresses["last_token"],
                sample_scratch=addresses["sample_scratch"],
                counts=addresses["counts"],
                pooled_sums=addresses["pooled_sums"],
                predicted=addresses.get("predicted", 0),
            )
        except BaseException:
            tables.close()
            raise

    def cache(self, layer: int) -> KVCache:
        """Return a layer's cache, of which blocks have memory by now; there is none where another device attends."""
        assert self.kv_pool is not None, f"layer {layer} has its cache elsewhere"
        return self.kv_pool.cache(layer)

    def fixed_state(self, layer: int) -> int:
        """Return where a layer's states of fixed size lie; they have memory by now."""
        return self.places[fixed_name(layer)].address

    def close(self) -> None:
        """Free the tables; nothing on the device may still use them."""
        self.tables.close()


def _rotary_tables(tables: Arena, model: ModelSpec, max_context: int) -> Mapping[tuple[RotaryConfig, int], int]:
    places: dict[tuple[RotaryConfig, int], int] = {}
    for rotary, head_dim in model.rotaries:
        values = frequencies(rotary.for_context(max_context), head_dim)
        place = tables.allocate(len(values))
        assert place.mapped is not None
        place.mapped[:] = values
        places[rotary, head_dim] = place.address
    return places
