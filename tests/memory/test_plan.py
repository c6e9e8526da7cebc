"""What a model takes of a device's memory, on made-up devices: nothing is allocated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.golden.cases import CASES
from tests.gpu.made_up import DISCRETE, GIB, INTEL, NVIDIA_REBAR, NVIDIA_WINDOW, RADV_780M, RADV_DISCRETE, SOFTWARE
from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.errors import ConfigError, OutOfMemoryError
from unicorn_async.gpu.budget import HeapKind
from unicorn_async.loader.staging_plan import RingSize, StagingNeed
from unicorn_async.memory.choice import choose_device
from unicorn_async.memory.kv_pieces import PIECE_BYTES
from unicorn_async.memory.kv_plan import plan_kv_cache
from unicorn_async.memory.load_steps import fit_load_steps, load_step_bytes
from unicorn_async.memory.plan import MemoryPlan, plan_memory
from unicorn_async.models.registry import model_spec
from unicorn_async.tensor import ALIGNMENT, DType, QuantFormat
from unicorn_async.weights.chunk import Chunk, Transform
from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.plan import DestTensor, LoadPlan

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.tensor import ElementType

VRAM, GTT = HeapKind.VRAM, HeapKind.GTT
HOST = 48 * GIB
MIB = 1 << 20
SHAPE_8B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
LLAMA_8B = model_spec({"architectures": ["LlamaForCausalLM"], **SHAPE_8B})
TIED_8B = model_spec({"architectures": ["LlamaForCausalLM"], **SHAPE_8B, "tie_word_embeddings": True})
GEMMA_27B = model_spec(
    {
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_size": 5376,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "intermediate_size": 21504,
        "sliding_window": 1024,
    }
)


def load_plan(config: ModelSpec, kind: ElementType) -> LoadPlan:
    """A plan that makes all matrices of one kind, and reads nothing."""
    rows: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    layers: dict[str, int] = {}
    for want in config.wanted_tensors():
        rows[want.dest] = rows.get(want.dest, 0) + want.shape[0]
        shapes[want.dest], layers[want.dest] = want.shape, want.layer
    destinations = tuple(
        DestTensor(
            name,
            (rows[name], *shape[1:]),
            DType.F32 if len(shape) != 2 else QuantFormat.INT8 if name in ("embed", "head") and kind is INT4 else kind,
            layers[name],
            name,
        )
        for name, shape in shapes.items()
    )
    chunk = Chunk(0, 0, 16 << 20, "layers.0.qkv", 0, Transform.COPY, DType.BF16, kind, 0)
    return LoadPlan(destinations, (chunk,), tuple(sorted(set(layers.values()))), ())


INT4 = QuantFormat.INT4
RING_BUFFER_BYTES = 16 * MIB
STAGING = StagingNeed(((RingSize(16, RING_BUFFER_BYTES),),))
BF16_8B, INT4_8B, INT4_27B = load_plan(LLAMA_8B, DType.BF16), load_plan(LLAMA_8B, INT4), load_plan(GEMMA_27B, INT4)


STEP_BYTES = 2 * 4 * 512 * LLAMA_8B.hidden_size  # that a load's step keeps between two layers


def planned(info: DeviceInfo, plan: LoadPlan, config: ModelSpec = LLAMA_8B, **options: object) -> MemoryPlan:
    return plan_memory(config, EngineConfig(**options), plan, info, host_bytes=HOST)  # type: ignore[arg-type]


def groups_in(plan: MemoryPlan, heap: HeapKind) -> set[MemoryGroup]:
    blocks = (*plan.placement.blocks, *plan.placement.grown)
    return {claim.group for block in blocks if block.heap is heap for claim in block.claims}


@pytest.mark.parametrize("info", [NVIDIA_WINDOW, NVIDIA_REBAR, RADV_DISCRETE, INTEL, SOFTWARE])
def test_a_model_that_fits_lies_in_vram_alone_where_nothing_else_is_asked_for(info: DeviceInfo) -> None:
    plan = planned(info, INT4_8B)
    assert plan.placement.nbytes(GTT) == 0
    assert plan.placement.total_bytes <= plan.placement.room.total
    assert plan.kv.max_context >= 4096


def test_a_gpu_of_its_own_gives_the_cache_all_that_is_left() -> None:
    plan = planned(NVIDIA_REBAR, INT4_8B)
    free = plan.placement.room.total - plan.placement.total_bytes
    assert 0 <= free - STEP_BYTES * (plan.num_load_steps - 2) < 64 << 20


@pytest.mark.parametrize("info", [INTEL, SOFTWARE, RADV_780M])
def test_memory_that_the_host_uses_too_gives_the_cache_a_quarter(info: DeviceInfo) -> None:
    plan = planned(info, load_plan(TIED_8B, INT4), TIED_8B)
    assert plan.kv.nbytes <= plan.placement.room.total / 4


def test_a_context_that_was_asked_for_may_take_more_than_a_quarter() -> None:
    assert planned(SOFTWARE, INT4_8B, max_num_seqs=1).kv.max_context < 15_000
    plan = planned(SOFTWARE, INT4_8B, max_context=16_384)
    assert plan.kv.max_context == 16_384
    assert plan.kv.nbytes > plan.placement.room.total / 4


def test_an_apu_spreads_a_model_over_both_heaps() -> None:
    plan = planned(RADV_780M, INT4_8B, max_context=8192)
    assert groups_in(plan, GTT) == {MemoryGroup.EMBEDDINGS}
    large = planned(RADV_780M, INT4_27B, GEMMA_27B, max_context=2048, max_num_seqs=1, vram_bytes=11 * GIB)
    assert groups_in(large, GTT) == {MemoryGroup.FFN}
    assert groups_in(large, VRAM) == set(MemoryGroup) - {MemoryGroup.EMBEDDINGS, MemoryGroup.STATE, MemoryGroup.EXPERTS}
    ffn = [(row.layers, row.heap) for row in large.placement.rows() if row.group is MemoryGroup.FFN]
    assert [heap for _, heap in ffn] == [VRAM, GTT]
    (first, last), (begin, end) = (layers for layers, _ in ffn if layers is not None)
    assert (first, end) == (0, 61)
    assert last <= begin


def test_heaps_of_an_apu_are_not_counted_twice() -> None:
    options = EngineConfig(max_context=2048, max_num_seqs=1)
    plan = plan_memory(GEMMA_27B, options, INT4_27B, RADV_780M, host_bytes=40 * GIB)
    needed = plan.placement.total_bytes
    assert RADV_780M.available_bytes > needed
    with pytest.raises(OutOfMemoryError, match=r"780M.*: [\d,]+ bytes of memory are missing"):
        plan_memory(GEMMA_27B, options, INT4_27B, RADV_780M, host_bytes=needed)


def test_a_discrete_gpu_uses_the_hosts_memory_when_it_is_told_to() -> None:
    with pytest.raises(OutOfMemoryError, match=r"What would help:.*--gtt SIZE.*over the bus: slow"):
        planned(NVIDIA_WINDOW, BF16_8B)
    plan = planned(NVIDIA_WINDOW, BF16_8B, gtt_bytes=16 * GIB)
    assert plan.placement.room.slow_gtt
    assert groups_in(plan, GTT) == {MemoryGroup.FFN, MemoryGroup.EMBEDDINGS}
    assert plan.kv.nbytes <= plan.placement.room.vram / 4
    assert plan.placement.nbytes(VRAM) <= plan.placement.room.vram


def test_what_is_missing_and_what_would_help_is_said() -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        planned(NVIDIA_REBAR, BF16_8B, max_context=4096, vram_bytes=6 * GIB)
    text = str(caught.value)
    weights = sum(dest.nbytes for dest in BF16_8B.destinations)
    assert f"the weights need {weights:,}" in text
    assert "6,442,450,944 may be used" in text
    for way in ("--weights int8 or int4", "a smaller --max-context", "--gtt SIZE", "a higher --vram or --gtt"):
        assert way in text
    with pytest.raises(OutOfMemoryError) as caught:
        planned(SOFTWARE, BF16_8B, weights=WeightScheme.INT4)
    assert "--gtt" not in str(caught.value)
    assert "--weights" not in str(caught.value)


def test_what_adapters_take_while_the_model_loads_is_counted_in() -> None:
    options = EngineConfig(max_context=2048)
    plan = plan_memory(LLAMA_8B, options, INT4_8B, SOFTWARE, host_bytes=HOST)
    left = plan.placement.room.total - plan.placement.total_bytes + plan.kv.nbytes
    with pytest.raises(OutOfMemoryError, match="missing"):
        plan_memory(LLAMA_8B, options, INT4_8B, SOFTWARE, transient_bytes=left, host_bytes=HOST)


@pytest.mark.parametrize("info", [SOFTWARE, INTEL])
@pytest.mark.parametrize("spare", [16, 300, 800])
def test_staging_is_counted_in_where_the_device_shares_the_hosts_memory(info: DeviceInfo, spare: int) -> None:
    options = EngineConfig(max_context=2048, max_num_seqs=1)
    without = plan_memory(LLAMA_8B, options, INT4_8B, info, host_bytes=HOST)
    least = without.placement.total_bytes + RING_BUFFER_BYTES  # and what is left over
    limited = replace(options, vram_bytes=least + RING_BUFFER_BYTES + spare * MIB)
    plan = plan_memory(LLAMA_8B, limited, INT4_8B, info, staging=STAGING, host_bytes=HOST)
    assert plan.staged_bytes == STAGING.nbytes(plan.staging_bytes) >= 2 * RING_BUFFER_BYTES
    assert plan.placement.total_bytes + plan.staged_bytes <= plan.placement.room.total
    assert plan.kv.max_context == 2048
    none = replace(options, vram_bytes=without.placement.total_bytes + RING_BUFFER_BYTES)
    with pytest.raises(OutOfMemoryError, match="staging while they load 33,554,432"):
        plan_memory(LLAMA_8B, none, INT4_8B, info, staging=STAGING, host_bytes=HOST)


@pytest.mark.parametrize(("left", "num_buffers"), [(64, 2), (400, 6), (800, 12), (1024, 16), (5000, 16)])
def test_staging_leaves_the_cache_three_quarters_of_what_is_left(left: int, num_buffers: int) -> None:
    options = EngineConfig(max_num_seqs=1, kv_cache_bytes=MIB * 16)
    model = plan_memory(LLAMA_8B, options, INT4_8B, SOFTWARE, host_bytes=HOST)
    beside = model.placement.total_bytes - model.kv.nbytes + 2 * ALIGNMENT * LLAMA_8B.num_layers
    limited = replace(options, vram_bytes=beside + left * MIB, kv_cache_bytes=None)
    plan = plan_memory(LLAMA_8B, limited, INT4_8B, SOFTWARE, staging=STAGING, host_bytes=HOST)
    assert plan.staged_bytes == num_buffers * RING_BUFFER_BYTES


def test_the_plan_of_a_gpus_own_memory_has_no_room_for_staging() -> None:
    options = EngineConfig(max_context=2048)
    plan = plan_memory(LLAMA_8B, options, INT4_8B, NVIDIA_REBAR, staging=STAGING, host_bytes=HOST)
    assert plan == plan_memory(LLAMA_8B, options, INT4_8B, NVIDIA_REBAR, host_bytes=HOST)


@pytest.mark.parametrize("frames", [2, 3])
def test_every_step_in_flight_has_a_place_for_what_it_keeps_between_layers_and_those_of_a_load_share_one(
    frames: int,
) -> None:
    plan = planned(SOFTWARE, INT4_8B, num_frames=frames, max_num_batched_tokens=100)
    sizes = {claim.name: claim.nbytes for block in plan.placement.blocks for claim in block.claims}
    for name in ("hidden", "branch"):
        own = [nbytes for claim, nbytes in sizes.items() if claim.startswith(f"{name}.")]
        assert own == [100 * 4096 * 4] * (frames + 1)


@pytest.mark.parametrize(
    ("total", "left", "options", "wanted"),
    [
        (128 * GIB, 100 * GIB, {}, 64),
        (128 * GIB, 100 * GIB, {"num_load_steps": 5}, 5),
        (128 * GIB, 100 * GIB, {"num_load_steps": 1}, 2),
        (128 * GIB, 100 * GIB, {"max_num_seqs": 1, "max_context": 8192}, 16),  # full of the only context
        (128 * GIB, 100 * GIB, {"max_num_seqs": 1, "max_context": 512}, 2),
        (128 * GIB, 100 * GIB, {"max_num_seqs": 9, "max_context": 64}, 9),  # one for each
        (16 * GIB, 10 * GIB, {}, 2 + 16),  # 1 / 64 of the memory
        (16 * GIB, 1 * GIB, {}, 2 + 4),  # 1 / 16 of what is left
        (16 * GIB, 0, {}, 2),
        (16 * GIB, -1, {"num_frames": 3}, 3),
        (16 * GIB, 10 * GIB, {"max_num_batched_tokens": 2048}, 2 + 4),
    ],
)
def test_a_load_has_as_many_steps_as_its_memory_and_the_contexts_allow(
    total: int, left: int, options: dict[str, int], wanted: int
) -> None:
    given = EngineConfig(**options)
    fitted = fit_load_steps(given, LLAMA_8B, total_bytes=total, left_bytes=left)
    assert fitted.num_load_steps == wanted
    assert replace(fitted, num_load_steps=given.num_load_steps) == given
    of_one = STEP_BYTES * fitted.max_num_batched_tokens // 512
    assert load_step_bytes(fitted, LLAMA_8B) == (wanted - fitted.num_frames) * of_one <= total // 64


def test_the_cache_leaves_room_for_the_steps_of_a_load() -> None:
    few, many = (planned(NVIDIA_REBAR, INT4_8B, num_load_steps=frames) for frames in (2, 64))
    assert (few.num_load_steps, many.num_load_steps) == (2, 2 + 5)
    assert many.step_bytes == 5 * STEP_BYTES
    assert many.placement.total_bytes + many.step_bytes <= many.placement.room.total
    assert few.kv.nbytes * 0.85 <= many.kv.nbytes < few.kv.nbytes


def test_a_cache_that_was_asked_for_is_not_cut_for_the_steps_of_a_load() -> None:
    fits = planned(NVIDIA_REBAR, INT4_8B, num_load_steps=2).kv.nbytes
    plan = planned(NVIDIA_REBAR, INT4_8B, kv_cache_bytes=fits)
    assert (plan.kv.nbytes, plan.num_load_steps, plan.step_bytes) == (fits, 2, 0)


def test_states_of_fixed_size_have_room_for_every_sequence_and_layers_without_attention_have_no_cache() -> None:
    keys = {**SHAPE_8B, "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": False}
    config = model_spec({**keys, "full_attn_idxs": [2, 5]})
    plan = planned(SOFTWARE, load_plan(config, INT4), config, max_num_seqs=8, prefix_cache=False, speculation="off")
    claims = {claim.name: claim for block in plan.placement.blocks for claim in block.claims}
    assert not any(claim.group is MemoryGroup.KV_CACHE for claim in claims.values())
    states = {name: claim for name, claim in claims.items() if claim.group is MemoryGroup.STATE}
    assert set(states) == {f"layers.{layer}.state" for layer in range(32) if layer not in (2, 5)}
    assert {claim.nbytes for claim in states.values()} == {8 * 2 * 4 * 4096}  # sequences, inputs of 4096 f32
    assert [pieces.num_layers for pieces in plan.kv.pieces] == [2]
    assert sum(block.nbytes for block in plan.placement.grown) == plan.kv.nbytes
    assert MemoryGroup.STATE in {row.group for row in plan.placement.rows()}


def test_pieces_of_the_cache_are_short_allocations_and_lie_in_the_order_of_growth() -> None:
    plan = planned(NVIDIA_REBAR, INT4_8B, max_num_seqs=256, vram_bytes=7 * GIB)
    assert len(plan.placement.grown) > 20
    assert {block.nbytes for block in plan.placement.grown} == {plan.kv.pieces[0].nbytes}
    assert plan.kv.pieces[0].nbytes <= PIECE_BYTES + 4 * plan.kv.pieces[0].block_nbytes * plan.kv.pieces[0].num_layers
    assert [block.claims[0].name for block in plan.placement.grown[:2]] == ["KV cache[0]", "KV cache[1]"]


def test_the_first_device_that_a_model_fits_is_taken() -> None:
    options = EngineConfig(max_context=2048, max_num_seqs=4)
    info, plan = choose_device((DISCRETE, RADV_780M), LLAMA_8B, options, INT4_8B)
    assert info is DISCRETE
    assert plan.kv.max_context == 2048


def test_a_model_that_fits_no_device_names_all_of_them() -> None:
    with pytest.raises(OutOfMemoryError, match=r"RTX 4060: [\d,]+ bytes of memory are missing(.|\n)*Intel.* missing"):
        choose_device((NVIDIA_REBAR, INTEL), GEMMA_27B, EngineConfig(), load_plan(GEMMA_27B, DType.BF16))


def test_a_context_beyond_the_models_is_an_error_on_any_device() -> None:
    with pytest.raises(ConfigError, match="131072 positions"):
        planned(NVIDIA_REBAR, INT4_8B, max_context=131_073, kv_cache_bytes=1 << 20)


def test_a_refusal_says_how_to_leave_out_the_layer_that_predicts() -> None:
    model = model_spec({**CASES["glm4_moe"].config, "num_nextn_predict_layers": 1})
    predicting = model.predicting(model.predictors[0])
    with pytest.raises(OutOfMemoryError, match=r"--draft none, which leaves out .* a token more: [1-9][\d,]+ bytes;"):
        planned(NVIDIA_REBAR, load_plan(predicting, DType.BF16), predicting, vram_bytes=1 << 20)
    with pytest.raises(OutOfMemoryError, match=r"fewer sequences, or leave out .* with --draft none"):
        plan_kv_cache(predicting, EngineConfig(), 1)
    with pytest.raises(OutOfMemoryError) as refused:
        planned(NVIDIA_REBAR, load_plan(model, DType.BF16), model, vram_bytes=1 << 20)
    assert "--draft" not in str(refused.value)
