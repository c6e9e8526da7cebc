"""What a model needs of a device's memory, and where it will lie, before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from unicorn_async.config import WeightScheme
from unicorn_async.errors import OutOfMemoryError
from unicorn_async.gpu.arena import block_nbytes
from unicorn_async.gpu.device_info import DeviceType, shared_memory_text
from unicorn_async.gpu.host import HostGraphics
from unicorn_async.gpu.memory_room import HeapKind, HeapLimits, host_room, memory_room
from unicorn_async.loader.staging_plan import StagingNeed
from unicorn_async.memory.kv_plan import kv_budget, kv_cache_bytes, plan_kv_cache, wanted_context
from unicorn_async.memory.loading_frames import fit_loading_frames, spare_bytes
from unicorn_async.models.activations import activation_bytes
from unicorn_async.models.weights import memory_group
from unicorn_async.ops.attention_plan import AttentionPlan
from unicorn_async.ops.kv_cache import AttentionShape
from unicorn_async.ops.sampling import counts_bytes, scratch_bytes
from unicorn_async.tensor import ALIGNMENT, DType
from unicorn_async.weights.placement import Claim, MemoryGroup, place, weight_claims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from unicorn_async.config import EngineConfig, KVDType, ModelConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.memory_room import MemoryRoom
    from unicorn_async.hybrid.far_plan import FarPlan
    from unicorn_async.memory.kv_plan import KVPlan
    from unicorn_async.weights.placement import Placement
    from unicorn_async.weights.plan import LoadPlan

# Plans what another device has beside a model on a device, of whose memory so many bytes are left; None if none does.
FarPlanner: TypeAlias = "Callable[[DeviceInfo, int], FarPlan | None]"

EVALUATION_ROWS = 64  # logits that evaluation requests may have computed in one step
NO_STAGING = StagingNeed()
_STAGING_SHARE = 0.25  # of what is left beside weights and workspace: the cache never gets back what the load had


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The cache's pools, and where everything lies; names are those of destinations, activations and `kv_names`.

    `far` is what another device has of the model: the cache is there then. `staging_bytes` is the limit for each ring
    of staging memory, and `staged_bytes` are kept free for the rings while the model loads; `num_loading_frames` steps
    may go along with it, for which `step_bytes` are kept free.
    """

    kv: KVPlan
    placement: Placement
    staging_bytes: int
    num_loading_frames: int
    step_bytes: int
    far: FarPlan | None = None
    staged_bytes: int = 0


def max_logit_rows(options: EngineConfig) -> int:
    """Return how many rows of logits a step may compute."""
    return options.max_num_seqs + EVALUATION_ROWS


def attention_shape(model: ModelConfig, options: EngineConfig) -> AttentionShape:
    """Return the shape of a model's attention."""
    return AttentionShape(model.num_heads, model.num_kv_heads, model.head_dim, options.block_size, options.kv_dtype)


def kv_names(layer: int) -> tuple[str, str]:
    """Return the names of a layer's keys and values."""
    return f"layers.{layer}.keys", f"layers.{layer}.values"


def decode_scratch_bytes(attention: AttentionPlan, max_items: int) -> Mapping[str, int]:
    """Return what a `DecodeScratch` for so many decode items needs, in bytes by name."""
    return {
        "partials": attention.partials_nbytes(max_items),
        "split_counters": attention.split_counters_nbytes(max_items),
    }


def workspace_sizes(model: ModelConfig, options: EngineConfig, attention: AttentionPlan) -> Mapping[str, int]:
    """Return what a model needs beside weights and KV cache, in bytes by name."""
    sequences = options.max_num_seqs
    return {
        **activation_bytes(model, options.max_num_batched_tokens, max_logit_rows(options), options.num_residuals),
        **({} if options.attends_elsewhere else decode_scratch_bytes(attention, sequences)),
        "last_token": 4 * sequences,
        "sample_scratch": scratch_bytes(sequences, model.vocab_size),
        "counts": counts_bytes(sequences, model.vocab_size),
    }


def plan_memory(
    model: ModelConfig,
    options: EngineConfig,
    plan: LoadPlan,
    info: DeviceInfo,
    *,
    passing_bytes: int = 0,
    staging: StagingNeed = NO_STAGING,
    host_bytes: int | None = None,
    far: FarPlanner | None = None,
) -> MemoryPlan:
    """Plan a model's memory on a device.

    `passing_bytes` are needed beside it for as long as it loads, and `staging` of the host's memory, which counts where
    the device shares that: there it takes a quarter at most of what is left beside weights and workspace, and leaves a
    cache of the least size its room, down to two slots a ring. `host_bytes` is the free memory of `host_room`, None =
    as it is now. `far` plans what another device has of it, if one does.

    Raises:
        ConfigError: the context is longer than the model's, or a limit is for a heap that is not there.
        OutOfMemoryError: it does not fit; the message says by how much, and what would help.
    """
    wanted_context(model, options)
    room = memory_room(
        info,
        HeapLimits(options.vram_bytes, options.gtt_bytes),
        host_room(info) if host_bytes is None else host_bytes,
    )
    weights = weight_claims(plan, lambda name: memory_group(name, model))
    sizes = workspace_sizes(model, options, AttentionPlan.of(info, attention_shape(model, options)))
    workspace = [Claim(name, nbytes, MemoryGroup.WORKSPACE, -1) for name, nbytes in sizes.items()]
    weight_bytes, workspace_bytes = _padded(weights), _padded(workspace)
    padding = 2 * ALIGNMENT * model.num_layers + passing_bytes
    if room.gtt:  # where a tensor does not fit any more, some of VRAM is left over
        padding += max((claim.nbytes for claim in weights), default=0)
    elsewhere = options.attends_elsewhere
    least = 0 if elsewhere else kv_cache_bytes(model, options, options.max_context or options.block_size)
    left = room.total - weight_bytes - workspace_bytes - padding
    staging_bytes, staged_bytes = options.staging_bytes, 0
    if info.shares_host_memory:
        staging_bytes = staging.limit(staging_bytes, min(int(left * _STAGING_SHARE), left - least))
        staged_bytes = staging.nbytes(staging_bytes)
        padding += staged_bytes
        left -= staged_bytes
    if left < least:
        cache = "" if elsewhere else f", a KV cache of {options.max_context or options.block_size} tokens {least:,}"
        staged = f", staging while they load {staged_bytes:,}" if staged_bytes else ""
        raise OutOfMemoryError(
            f"{info.name}: {least - left:,} bytes of memory are missing: the weights need {weight_bytes:,}{staged}, "
            f"the workspace {workspace_bytes:,}{cache}; {_room_text(room)}{_advice(options, plan, info, room)}"
        )
    asked = max(least, options.kv_cache_bytes or 0)
    options = fit_loading_frames(options, model, total_bytes=room.total, left_bytes=left - asked)
    step_bytes = spare_bytes(options, model)
    padding, left = padding + step_bytes, left - step_bytes
    far_plan = far(info, left) if far is not None else None
    if far_plan is not None:
        if far_plan.near_bytes > left:
            raise OutOfMemoryError(
                f"{info.name}: {far_plan.near_bytes - left:,} bytes of memory are missing: {left:,} are left beside the"
                f" model, attention on {far_plan.device} needs {far_plan.near_bytes:,} of them; {_room_text(room)}"
            )
        return MemoryPlan(
            far_plan.kv,
            place(_in_turn([*weights, *workspace]), room, max_allocation=info.max_allocation),
            staging_bytes,
            options.num_loading_frames,
            step_bytes,
            far_plan,
            staged_bytes,
        )
    fast = _padded(claim for claim in weights if claim.group is not MemoryGroup.EMBEDDINGS)
    budget = kv_budget(room, model, options, weights=weight_bytes, fast_weights=fast, others=workspace_bytes + padding)
    kv = plan_kv_cache(model, options, budget, max_allocation=info.max_allocation)
    return MemoryPlan(
        kv,
        place(
            _in_turn([*_cache(kv, options.kv_dtype), *weights, *workspace]), room, max_allocation=info.max_allocation
        ),
        staging_bytes,
        options.num_loading_frames,
        step_bytes,
        staged_bytes=staged_bytes,
    )


def choose_device(
    devices: Sequence[DeviceInfo],
    model: ModelConfig,
    options: EngineConfig,
    plan: LoadPlan,
    *,
    passing_bytes: int = 0,
    staging: StagingNeed = NO_STAGING,
    far: FarPlanner | None = None,
) -> tuple[DeviceInfo, MemoryPlan]:
    """Return the first of the devices, best first, that the model fits, and its plan there.

    `far` plans what another device has of the model, if one does.

    Raises:
        ConfigError: as `plan_memory`.
        OutOfMemoryError: it fits none; the messages of all are in it.
    """
    errors: list[OutOfMemoryError] = []
    for info in devices:
        try:
            return info, plan_memory(model, options, plan, info, passing_bytes=passing_bytes, staging=staging, far=far)
        except OutOfMemoryError as exc:
            errors.append(exc)
    raise OutOfMemoryError("\n".join(map(str, errors)))


def _cache(kv: KVPlan, kv_dtype: KVDType) -> list[Claim]:
    return [
        Claim(name, kv.layer_bytes[group], MemoryGroup.KV_CACHE, layer, kv_dtype.value)
        for layer, group in enumerate(kv.layer_group)
        for name in kv_names(layer)
    ]


def _in_turn(claims: Iterable[Claim]) -> list[Claim]:
    """Return the claims in the order in which a first prompt needs them: what all layers use, then each layer's own."""
    return sorted(claims, key=lambda claim: claim.layer)


def _padded(claims: Iterable[Claim]) -> int:
    return block_nbytes([claim.nbytes for claim in claims])


def _room_text(room: MemoryRoom) -> str:
    text = f"{room.total:,} may be used"
    parts = [f"{room.of(heap):,} of {heap.value}" for heap in HeapKind if room.of(heap)]
    return f"{text} ({', '.join(parts)}; one memory backs both)" if len(parts) > 1 and room.is_shared else text


def _advice(options: EngineConfig, plan: LoadPlan, info: DeviceInfo, room: MemoryRoom) -> str:
    """What would help, and where an AMD APU's memory went."""
    ways = []
    dense = sum(dest.nbytes for dest in plan.destinations if isinstance(dest.dtype, DType))
    if options.weights in (WeightScheme.AUTO, WeightScheme.F16) and 2 * dense > plan.dest_bytes:
        ways.append("--weights int8 or int4")
    if options.max_context:
        ways.append("a smaller --max-context")
    ways.append("a smaller --max-num-batched-tokens")
    if info.type is DeviceType.DISCRETE and not room.gtt:
        ways.append("--gtt SIZE, which puts FFN weights into the host's memory and reads them over the bus: slow")
    if options.vram_bytes is not None or options.gtt_bytes is not None:
        ways.append("a higher --vram or --gtt")
    return f". What would help: {'; '.join(ways)}{shared_memory_text(info, HostGraphics())}"
