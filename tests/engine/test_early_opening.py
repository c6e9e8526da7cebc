"""An engine that takes requests while its model's memory is still allocated."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tests.conftest import VALIDATION
from tests.golden.cases import CASES
from tests.loader.held_blocks import HeldBlocks
from tests.patience import PATIENCE_S
from unicorn_async.engine import opening
from unicorn_async.errors import EngineClosedError, OutOfMemoryError
from unicorn_async.gpu.arena import Arena
from unicorn_async.loader.allocator import BackgroundAllocator
from unicorn_async.memory.staging import stages_in_vram
from unicorn_async.models.registry import model_spec
from unicorn_async.step.layer_gate import LayerGate
from unicorn_async.step.layer_recording import LayerRecording
from unicorn_async.weights.placement import place

from .answers import PROMPT, answer, prompt_of
from .layer_log import LayerLog
from .loading_gate import LoadingGate

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.budget import HeapKind
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.timeline import Timeline
    from unicorn_async.loader.stream import LoadStream
    from unicorn_async.memory.plan import MemoryPlan
    from unicorn_async.step.attention_writer import AttentionParts
    from unicorn_async.step.frame import StepShape
    from unicorn_async.weights.placement import PlannedBlock

    from .conftest import OpenEngine

HELD_FROM = 500_000  # bytes: enough for some of the layers, not for all


class Blocks:
    """The blocks of the model that is opened next; they are small, so that there are many."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.planned: tuple[PlannedBlock, ...] = ()
        patch.setitem(place.__kwdefaults__, "block_bytes", 1 << 14)
        begin = BackgroundAllocator.begin

        def noted_begin(places: BackgroundAllocator) -> None:
            self.planned = places._blocks
            begin(places)

        patch.setattr(BackgroundAllocator, "begin", noted_begin)

    def num_before(self, layer: int) -> int:
        """Blocks in front of the first one that has something of a layer."""
        has = [any(claim.layer == layer for claim in block.claims) for block in self.planned]
        return has.index(True)

    def num_with(self, layer: int) -> int:
        """Blocks up to the last one that has something of a layer."""
        has = [any(claim.layer == layer for claim in block.claims) for block in self.planned]
        return len(has) - has[::-1].index(True)


class Room:
    """Memory has room for so many blocks."""

    def __init__(self, patch: pytest.MonkeyPatch, num_blocks: int) -> None:
        self._left = num_blocks
        allocate = Arena.allocate_block

        def limited(arena: Arena, sizes: Sequence[int], *, gives_way: bool = False) -> tuple[ArenaSlice, ...]:
            self._left -= 1
            if self._left < 0:
                raise OutOfMemoryError("1 bytes of VRAM memory needed, 0 available")
            return allocate(arena, sizes, gives_way=gives_way)

        patch.setattr(Arena, "allocate_block", limited)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Blocks:
    """Small blocks."""
    return Blocks(monkeypatch)


async def test_a_prompt_runs_through_the_first_layers_while_the_last_ones_have_no_memory(
    open_engine: OpenEngine, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(300)  # of 128 tokens a step
    async with open_engine() as engine:
        expected = await answer(engine, prompt)
    log, held = LayerLog(monkeypatch), HeldBlocks(monkeypatch, blocks.num_with(1))
    async with asyncio.timeout(PATIENCE_S), open_engine() as engine:
        waiting = asyncio.create_task(answer(engine, prompt))
        await log.has(layer=1, count=3)
        assert log.steps(2) == []
        held.let(len(blocks.planned))
        assert (await waiting).ids == expected.ids
        await engine.loaded()
        assert engine.memory.heaps[0].plan_agrees


async def test_what_a_first_prompt_needs_first_has_memory_first(open_engine: OpenEngine, blocks: Blocks) -> None:
    async with open_engine() as engine:
        await engine.loaded()
    layers = [claim.layer for block in blocks.planned for claim in block.claims]
    assert layers == sorted(layers)
    first = [claim.name for block in blocks.planned for claim in block.claims if claim.layer == -1]
    assert first[0] == "embed"  # it is read while the workspace is allocated
    assert {"scratch", "logits", "last_token"} < set(first)


async def test_a_closed_engine_does_not_wait_for_memory(
    open_engine: OpenEngine, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine() as engine:
        await engine.loaded()
    log, held = LayerLog(monkeypatch), HeldBlocks(monkeypatch, blocks.num_with(1))
    close = BackgroundAllocator.close

    async def letting_close(places: BackgroundAllocator, *, keep: Collection[HeapKind]) -> None:
        closing = asyncio.create_task(close(places, keep))
        await asyncio.sleep(0)
        held.let(1)  # that which a thread is at
        await closing

    monkeypatch.setattr(BackgroundAllocator, "close", letting_close)
    async with asyncio.timeout(PATIENCE_S):
        async with open_engine() as engine:
            waiting = asyncio.create_task(answer(engine))
            await log.has(layer=1, count=1)
        with pytest.raises(EngineClosedError):
            await waiting


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
async def test_memory_that_runs_out_before_requests_are_taken_ends_the_opening(
    share: float, open_engine: OpenEngine, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine() as engine:
        await engine.loaded()
    Room(monkeypatch, round(share * (blocks.num_before(0) - 1)))
    with pytest.raises(OutOfMemoryError, match="0 available"):
        async with asyncio.timeout(PATIENCE_S), open_engine():
            raise NotImplementedError("it is open")


@pytest.mark.parametrize("layer", [1, 2])
async def test_memory_that_runs_out_behind_an_opened_engine_is_told_to_everybody(
    layer: int, open_engine: OpenEngine, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine() as engine:
        expected = await answer(engine)
    with monkeypatch.context() as patch:
        Room(patch, blocks.num_before(layer))
        async with asyncio.timeout(PATIENCE_S), open_engine() as engine:
            waiting = [asyncio.create_task(answer(engine)), asyncio.create_task(engine.logits(PROMPT))]
            for failing in (engine.loaded(), *waiting):
                with pytest.raises(OutOfMemoryError, match="0 available"):
                    await failing
    async with open_engine() as engine:
        assert (await answer(engine)).ids == expected.ids


async def test_threads_of_the_pool_do_not_wait_for_each_other(open_engine: OpenEngine, blocks: Blocks) -> None:
    """Else engines that open at the same time could use up the pool."""
    with ThreadPoolExecutor(1) as alone:
        asyncio.get_running_loop().set_default_executor(alone)
        async with asyncio.timeout(PATIENCE_S), open_engine() as engine:
            assert len((await answer(engine)).ids) > 0
    assert len(blocks.planned) > 10
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())


async def test_where_staging_lies_is_decided_by_the_memory_that_is_free_before_anything_is_allocated(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocated: list[int] = []

    def noted(device: Device, plan: MemoryPlan, options: EngineConfig) -> bool:
        allocated.append(sum(device.memory.used_bytes))
        return stages_in_vram(device, plan, options)

    monkeypatch.setattr(opening, "stages_in_vram", noted)
    async with open_engine() as engine:
        await engine.loaded()
    assert len(allocated) == 1 and allocated[0] < 1 << 16  # a few counters


async def test_a_layer_is_there_once_its_state_of_fixed_size_has_memory_too() -> None:
    """Its weights may be there before, in memory of another kind."""
    timeline, states = cast("Timeline", object()), asyncio.Event()
    waited: list[list[str]] = []

    async def layer_submitted(layer: int) -> tuple[Timeline, int]:
        return timeline, layer + 2

    async def wait(names: list[str]) -> None:
        waited.append(names)
        await states.wait()

    stream, places = SimpleNamespace(layer_submitted=layer_submitted), SimpleNamespace(wait=wait)
    model = model_spec(CASES["lfm2"].config)
    fixed = [layer for layer, found in enumerate(model.layers) if found.fixed is not None]
    paged = next(layer for layer, found in enumerate(model.layers) if found.paged is not None)
    layers = LayerGate(cast("LoadStream", stream), cast("BackgroundAllocator", places), model)
    ends = (-1, paged, model.num_layers)
    assert [await layers.layer_submitted(layer) for layer in ends] == [(timeline, layer + 2) for layer in ends]
    second = asyncio.create_task(layers.layer_submitted(fixed[-1]))
    await asyncio.sleep(0)
    assert waited == [[f"layers.{fixed[-1]}.state"]] and not second.done()
    states.set()
    assert await second == (timeline, fixed[-1] + 2)


@pytest.mark.skipif(not VALIDATION, reason="needs Vulkan's validation layers: UNICORN_VALIDATION=1")
async def test_copies_of_steps_that_take_turns_are_ordered(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers see what is copied, if not what kernels read and write by addresses."""
    feature = "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT"
    across = "VALIDATION_CHECK_ENABLE_SYNCHRONIZATION_VALIDATION_QUEUE_SUBMIT"
    monkeypatch.setenv("VK_LAYER_ENABLES", f"{feature}:{across}")
    gate, log = LoadingGate(monkeypatch, HELD_FROM), LayerLog(monkeypatch)
    async with open_engine() as engine:
        waiting = asyncio.create_task(answer(engine, prompt_of(300)))
        await log.has(layer=0, count=3)
        gate.open()
        await waiting


async def test_steps_of_a_load_share_what_is_recorded_of_a_layer(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[tuple[int, int]] = []
    record = LayerRecording._layers

    def noted(
        recording: LayerRecording,
        recorder: CommandRecorder,
        shape: StepShape,
        work: AttentionParts,
        first: int,
        stop: int,
    ) -> None:
        recorded.append((shape.tokens, first))
        record(recording, recorder, shape, work, first, stop)

    monkeypatch.setattr(LayerRecording, "_layers", noted)
    gate, log = LoadingGate(monkeypatch, HELD_FROM), LayerLog(monkeypatch)
    async with open_engine() as engine:
        waiting = asyncio.create_task(answer(engine, prompt_of(3 * 128), max_tokens=1))
        await log.has(layer=0, count=3)
        gate.open()
        await waiting
        num_layers = engine.model_spec.num_layers
    assert [len(log.steps(layer)) for layer in range(num_layers)] == [3] * num_layers
    assert recorded == [(128, layer) for layer in range(num_layers)]
