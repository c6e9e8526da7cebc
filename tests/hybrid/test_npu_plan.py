"""What attention on an NPU asks of a model, and takes of the host's memory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from gpu.made_up import DISCRETE, INTEGRATED

from tests.memory.test_plans import GEMMA_27B
from unicorn_async.config import AttentionKind, AttentionTarget, EngineConfig
from unicorn_async.errors import OutOfMemoryError, UnsupportedModelError
from unicorn_async.hybrid.choice import fit_options
from unicorn_async.hybrid.npu_plan import npu_options, plan_npu
from unicorn_async.models.blocks.attention import Attention
from unicorn_async.npu.choice import NpuChoice
from unicorn_async.npu.geometry import NPU1
from unicorn_async.npu.manifest import find_build
from unicorn_async.npu.step import prepare_step
from unicorn_async.npu.work import SequenceWork

if TYPE_CHECKING:
    from unicorn_async.models.spec import Layer, ModelSpec

    from .npu_machine import NpuMachine

GIB = 1 << 30
NPU = EngineConfig(attention=AttentionTarget(AttentionKind.NPU))


def with_heads(**heads: int) -> ModelSpec:
    """The model with other heads."""

    def changed(layer: Layer) -> Layer:
        attention, *rest = layer.blocks
        assert isinstance(attention, Attention)
        return replace(layer, blocks=(replace(attention, q_norm=None, k_norm=None, **heads), *rest))

    return replace(GEMMA_27B, layers=tuple(map(changed, GEMMA_27B.layers)))


@pytest.mark.parametrize(
    ("head_dim", "asked", "block_size"),
    [(64, 16, 64), (64, 64, 64), (64, 256, 256), (128, 8, 64), (128, 128, 128), (256, 16, 64), (256, 512, 512)],
)
def test_blocks_are_large_and_hold_whole_chunks(head_dim: int, asked: int, block_size: int) -> None:
    model = with_heads(head_dim=head_dim)
    assert fit_options(model, replace(NPU, block_size=asked)).block_size == block_size
    if asked <= 64:
        assert fit_options(model, EngineConfig(block_size=asked)) == EngineConfig(block_size=asked)


LEFT = 1 << 60  # as much as anybody wants


def test_heads_that_the_kernels_do_not_take_are_refused() -> None:
    for head_dim in (96, 512):
        with pytest.raises(UnsupportedModelError, match=f"head_dim: expected one of 64, 128, 256, got {head_dim}"):
            fit_options(with_heads(head_dim=head_dim), NPU)
    with pytest.raises(UnsupportedModelError, match="at most 64 query heads"):
        fit_options(with_heads(num_heads=65, num_kv_heads=1), NPU)


@pytest.mark.parametrize(
    ("heads", "wanted"),
    [
        ({"has_sinks": True}, "the heads of .* have attention sinks"),
        ({"is_gated": True}, "what .* attends to is gated"),
        ({"has_head_gates": True}, "what .* attends to is gated"),
        ({"kv_layer": 0}, "layers of .* attend to keys and values of others"),
    ],
)
def test_what_only_the_models_own_device_does_is_refused_by_name_wherever_else_a_model_is_to_attend(
    heads: dict[str, int], wanted: str
) -> None:
    model = with_heads(**heads)
    assert fit_options(model, EngineConfig()) == EngineConfig()
    for kind in (AttentionKind.NPU, AttentionKind.VULKAN):
        target = AttentionTarget(kind, "0" if kind is AttentionKind.VULKAN else None)
        with pytest.raises(UnsupportedModelError, match=rf"--attention {kind.value}: {wanted}"):
            fit_options(model, EngineConfig(attention=target))


def test_the_cache_takes_a_quarter_of_the_host_s_memory_or_what_was_asked_for(machine: NpuMachine) -> None:
    npu = NpuChoice.find(GEMMA_27B, NPU)
    plan = plan_npu(GEMMA_27B, NPU, DISCRETE, npu, LEFT, host_bytes=40 * GIB)
    assert 8 * GIB < plan.kv.nbytes <= 9 * GIB
    asked = plan_npu(GEMMA_27B, replace(NPU, kv_cache_bytes=20 * GIB), DISCRETE, npu, LEFT, host_bytes=40 * GIB)
    assert 19 * GIB < asked.kv.nbytes <= 20 * GIB
    with pytest.raises(OutOfMemoryError, match="KV cache"):
        plan_npu(GEMMA_27B, replace(NPU, max_context=131_072), DISCRETE, npu, LEFT, host_bytes=4 * GIB)


def test_a_device_that_shares_the_host_s_memory_counts_the_cache_as_taken(machine: NpuMachine) -> None:
    npu = NpuChoice.find(GEMMA_27B, NPU)
    alone, shared = (plan_npu(GEMMA_27B, NPU, near, npu, LEFT, host_bytes=40 * GIB) for near in (DISCRETE, INTEGRATED))
    assert shared.kv == alone.kv
    assert alone.near_bytes < 1 * GIB < shared.kv.nbytes < shared.near_bytes
    assert shared.device == "AMD NPU npu1 at 0000:c4:00.1"


@pytest.mark.parametrize("max_context", [100, 131_072, 1_000_000])
def test_a_run_takes_the_instructions_of_any_context(machine: NpuMachine, max_context: int) -> None:
    npu = NpuChoice.find(GEMMA_27B, NPU)
    options = npu_options(npu.heads, max_context)
    blocks = tuple(range(0, 2 * -(-max_context // npu.heads.block_size), 2))  # no two of them are neighbours
    heads = replace(npu.heads, num_heads=2, num_kv_heads=1)
    step = prepare_step(
        find_build(npu.builds, NPU1, 128),
        heads,
        [SequenceWork(0, 1, max_context, blocks)],
        num_tokens=1,
        num_blocks=2 * len(blocks),
        window=0,
        soft_cap=0.0,
        items_per_run=options.items_per_run,
        instruction_bytes=options.instruction_bytes,
        tasks_per_run=options.tasks_per_run,
        run_s=0.5,
    )
    assert 0 < step.parts[0].stream.nbytes <= options.instruction_bytes


def test_no_layer_has_more_than_an_instruction_reaches(machine: NpuMachine) -> None:
    everywhere = GEMMA_27B.layers[5]
    assert everywhere.attention.window == 0
    model = replace(GEMMA_27B, layers=(everywhere,) * GEMMA_27B.num_layers, max_position=1 << 20)
    plan = plan_npu(model, NPU, DISCRETE, NpuChoice.find(model, NPU), LEFT, host_bytes=10_000 * GIB)
    assert 2 * max(plan.kv.layer_bytes) < 4 * GIB


def test_a_start_without_an_npu_imports_nothing_of_it() -> None:
    code = "import sys, unicorn_async.engine.engine; print([m for m in sys.modules if '.npu' in m])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
