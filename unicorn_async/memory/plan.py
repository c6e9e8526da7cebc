"""What a model needs of a device's memory, and where it will lie, before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from unicorn_async.config import WeightScheme
from unicorn_async.errors import OutOfMemoryError
from unicorn_async.gpu.arena import block_nbytes
from unicorn_async.gpu.budget import HeapKind, HeapLimits, host_room, memory_budget
from unicorn_async.gpu.choice import shared_memory_text
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.gpu.host import HostGraphics
from unicorn_async.loader.staging_plan import StagingNeed
from unicorn_async.memory.kv_pieces import growth_order
from unicorn_async.memory.kv_plan import kv_budget, kv_cache_bytes, plan_kv_cache, wanted_context
from unicorn_async.memory.load_steps import fit_load_steps, load_step_bytes
from unicorn_async.memory.states import StatePlan, plan_states
from unicorn_async.models.activations import activation_bytes
from unicorn_async.ops.attention_plan import AttentionPlan
from unicorn_async.ops.kv_cache import MAX_HEAD_DIM, AttentionShape
from unicorn_async.ops.pooling import sums_bytes
from unicorn_async.ops.sampling import counts_bytes, scratch_bytes
from unicorn_async.tensor import ALIGNMENT, DType
from unicorn_async.weights.placement import Claim, MemoryGroup, place, weight_claims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from unicorn_async.config import EngineConfig, KVDType
    from unicorn_async.gpu.budget import MemoryBudget
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.memory.far_plan import FarPlan
    from unicorn_async.memory.kv_plan import KVPlan
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.weights.placement import Placement
    from unicorn_async.weights.plan import LoadPlan

# Plans what another device has beside a model on a device, of whose memory so many bytes are left; None if none does.
FarPlanner: TypeAlias = "Callable[[DeviceInfo, int], FarPlan | None]"

EVALUATION_ROWS = 64  # logits that evaluation requests may have computed in one step
NO_STAGING = StagingNeed()
_STAGING_SHARE = 0.25  # of what is left beside weights and workspace: the cache never gets back what the load had


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The cache's pools, and where everything lies; names are those of destinations, activations
    and `fixed_name`; the cache is the placement's `grown`, in the order of `growth_order`.

    `far` is what another device has of the model: the cache is there then. `staging_bytes` is the limit for each ring
    of staging memory, and `staged_bytes` are kept free for the rings while the model loads; `num_load_steps` steps
    may go along with it, for which `step_bytes` are kept free. `states` says how many sequences a step may have.
    """

    kv: KVPlan
    placement: Placement
    staging_bytes: int
    num_load_steps: int
    step_bytes: int
    states: StatePlan
    far: FarPlan | None = None
    staged_bytes: int = 0


def max_logit_rows(options: EngineConfig) -> int:
    """Return how many rows of logits a step may compute."""
    return options.max_sampled + EVALUATION_ROWS


def attention_shape(model: ModelSpec, options: EngineConfig) -> AttentionShape:
    """Return the shape of a model's first attention; of one that has none, a shape that nothing goes by."""
    if not model.attends:
        return AttentionShape(1, 1, MAX_HEAD_DIM, options.block_size, options.kv_dtype)
    heads = model.num_heads, model.num_kv_heads, model.head_dim
    return AttentionShape(*heads, options.block_size, options.kv_dtype, model.attention.latent_dim)


def fixed_name(layer: int) -> str:
    """Return the name of a layer's states of fixed size."""
    return f"layers.{layer}.state"


def attention_plans(info: DeviceInfo, model: ModelSpec, options: EngineConfig) -> tuple[AttentionPlan, ...]:
    """Return how a device cuts a model's attention, by block group."""
    shape = attention_shape(model, options)
    return tuple(AttentionPlan.of(info, shape.with_heads(state)) for state in model.paged_states)


def decode_scratch_bytes(plans: Sequence[AttentionPlan], max_items: int) -> Mapping[str, int]:
    """Return what a `DecodeScratch` for so many decode items of any of these needs, in bytes by name."""
    if not plans:
        return {}
    return {
        "partials": max(plan.partials_nbytes(max_items) for plan in plans),
        "split_counters": max(plan.split_counters_nbytes(max_items) for plan in plans),
    }


def workspace_sizes(model: ModelSpec, options: EngineConfig, plans: Sequence[AttentionPlan]) -> Mapping[str, int]:
    """Return what a model needs beside weights and KV cache, in bytes by name."""
    sequences = options.max_seqs
    return {
        **activation_bytes(model, options.max_num_batched_tokens, max_logit_rows(options), options.num_residuals),
        **({} if options.attends_elsewhere else decode_scratch_bytes(plans, options.max_sampled)),
        "last_token": 4 * sequences,
        "sample_scratch": scratch_bytes(options.max_sampled, model.vocab_size),
        "counts": counts_bytes(sequences, model.vocab_size),
        "pooled_sums": sums_bytes(sequences, model.hidden_size),
        **({"predicted": 4 * sequences} if model.predicts else {}),
    }


def plan_memory(
    model: ModelSpec,
    options: EngineConfig,
    plan: LoadPlan,
    info: DeviceInfo,
    *,
    transient_bytes: int = 0,
    staging: StagingNeed = NO_STAGING,
    host_bytes: int | None = None,
    far: FarPlanner | None = None,
) -> MemoryPlan:
    """Plan a model's memory on a device.

    `transient_bytes` are needed beside it for as long as it loads, and `staging` of the host's memory, which counts
    where the device shares that: there it takes a quarter at most of what is left beside weights and workspace, and
    leaves a cache of the least size its room, down to two buffers a ring. `host_bytes` is the free memory of
    `host_room`, None = as it is now. `far` plans what another device has of it, if one does.

    Raises:
        ConfigError: the context is longer than the model's, or a limit is for a heap that is not there.
        OutOfMemoryError: it does not fit; the message says by how much, and what would help.
    """
    wanted_context(model, options)
    room = memory_budget(
        info,
        HeapLimits(options.vram_bytes, options.gtt_bytes),
        host_room(info) if host_bytes is None else host_bytes,
    )
    weights = weight_claims(plan, model.memory_groups())
    sizes = workspace_sizes(model, options, attention_plans(info, model, options))
    workspace = [Claim(name, nbytes, MemoryGroup.WORKSPACE, -1) for name, nbytes in sizes.items()]
    weight_bytes, workspace_bytes = _padded(weights), _padded(workspace)
    padding = 2 * ALIGNMENT * model.num_layers + transient_bytes
    if room.gtt:  # where a tensor does not fit any more, some of VRAM is left over
        padding += max((claim.nbytes for claim in weights), default=0)
    elsewhere = options.attends_elsewhere
    least = 0 if elsewhere else kv_cache_bytes(model, options, options.max_context or options.block_size)
    left = room.total - weight_bytes - workspace_bytes - padding
    states = plan_states(model, options, left_bytes=left, least_bytes=least)
    options = replace(options, max_num_seqs=states.num_seqs)
    fixed = _fixed(model, states.num_states)
    workspace += fixed
    state_bytes = _padded(fixed)
    left -= state_bytes
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
            f"the workspace {workspace_bytes:,}{_states_text(states)}{cache}; {_room_text(room)}"
            f"{_advice(model, options, plan, info, room, states)}"
        )
    asked = max(least, options.kv_cache_bytes or 0)
    options = fit_load_steps(options, model, total_bytes=room.total, left_bytes=left - asked)
    step_bytes = load_step_bytes(options, model)
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
            options.num_load_steps,
            step_bytes,
            states,
            far_plan,
            staged_bytes,
        )
    fast = _padded(claim for claim in weights if claim.group is not MemoryGroup.EMBEDDINGS)
    budget = kv_budget(
        room, model, options, weights=weight_bytes, fast_weights=fast, others=workspace_bytes + state_bytes + padding
    )
    kv = plan_kv_cache(model, options, budget, max_allocation=info.max_allocation)
    return MemoryPlan(
        kv,
        place(
            _in_turn([*_cache(kv, options.kv_dtype), *weights, *workspace]), room, max_allocation=info.max_allocation
        ),
        staging_bytes,
        options.num_load_steps,
        step_bytes,
        states,
        staged_bytes=staged_bytes,
    )


def _cache(kv: KVPlan, kv_dtype: KVDType) -> list[Claim]:
    order = enumerate(growth_order(kv.pieces))
    return [
        Claim(f"KV cache[{turn}]", kv.pieces[group].nbytes, MemoryGroup.KV_CACHE, turn, kv_dtype.value)
        for turn, group in order
    ]


def _fixed(model: ModelSpec, num_states: int) -> list[Claim]:
    return [
        Claim(fixed_name(layer), num_states * found.fixed.nbytes, MemoryGroup.STATE, layer)
        for layer, found in enumerate(model.layers)
        if found.fixed is not None
    ]


def _in_turn(claims: Iterable[Claim]) -> list[Claim]:
    """Return the claims in the order in which a first prompt needs them: what all layers use, then each layer's own."""
    return sorted(claims, key=lambda claim: claim.layer)


def _padded(claims: Iterable[Claim]) -> int:
    return block_nbytes([claim.nbytes for claim in claims])


def _room_text(room: MemoryBudget) -> str:
    text = f"{room.total:,} may be used"
    parts = [f"{room.of(heap):,} of {heap.value}" for heap in HeapKind if room.of(heap)]
    return f"{text} ({', '.join(parts)}; one memory backs both)" if len(parts) > 1 and room.is_shared else text


def _states_text(states: StatePlan) -> str:
    if not states.nbytes:
        return ""
    return f", the states of {states.num_seqs} sequences {states.num_seqs * states.nbytes:,}, {states.nbytes:,} each"


def _advice(
    model: ModelSpec,
    options: EngineConfig,
    plan: LoadPlan,
    info: DeviceInfo,
    room: MemoryBudget,
    states: StatePlan,
) -> str:
    """What would help, and where an AMD APU's memory went."""
    ways = []
    if model.predicts:
        own = f"layers.{model.num_layers}."
        nbytes = sum(dest.nbytes for dest in plan.destinations if dest.name.startswith(own))
        ways.append(f"--draft none, which leaves out the layer that predicts a token more: {nbytes:,} bytes")
    if states.nbytes and states.num_seqs > 1:
        ways.append(f"a smaller --max-num-seqs than {states.num_seqs}")
    dense = sum(dest.nbytes for dest in plan.destinations if isinstance(dest.dtype, DType) and not dest.is_order)
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
