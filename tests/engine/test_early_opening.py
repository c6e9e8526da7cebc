"""An engine that takes requests while its model's memory is still allocated."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.loader.held_blocks import PATIENCE_S, HeldBlocks
from unicorn_async.engine.layer_recording import LayerRecording
from unicorn_async.errors import EngineClosedError, OutOfMemoryError
from unicorn_async.gpu.arena import Arena
from unicorn_async.loader.arriving_places import ArrivingPlaces
from unicorn_async.loader.placement import place

from .answers import PROMPT, answer, prompt_of
from .layer_log import LayerLog
from .loading_gate import LoadingGate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.engine.attention_writer import AttentionParts
    from unicorn_async.engine.batch_writer import StepShape
    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.gpu.command import CommandRecorder
    from unicorn_async.loader.placement import PlannedBlock

    from .conftest import OpenEngine

HELD_FROM = 500_000  # bytes: enough for some of the layers, not for all


class Blocks:
    """The blocks of the model that is opened next; they are small, so that there are many."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.planned: tuple[PlannedBlock, ...] = ()
        patch.setitem(place.__kwdefaults__, "block_bytes", 1 << 14)
        begin = ArrivingPlaces.begin

        def noted_begin(places: ArrivingPlaces, hold_behind: Sequence[str] = ()) -> None:
            self.planned = places._blocks
            begin(places, hold_behind)

        patch.setattr(ArrivingPlaces, "begin", noted_begin)

    def num_before(self, layer: int) -> int:
        """Blocks in front of the first one that has something of a layer."""
        has = [any(claim.layer == layer for claim in block.claims) for block in self.planned]
        return has.index(True)


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
    log, held = LayerLog(monkeypatch), HeldBlocks(monkeypatch, blocks.num_before(2))
    async with asyncio.timeout(PATIENCE_S), open_engine() as engine:
        waiting = asyncio.create_task(answer(engine, prompt))
        await log.has(layer=1, count=3)
        assert log.steps(2) == []
        assert not engine.memory.heaps[0].plan_agrees  # not all of it is allocated
        held.let(len(blocks.planned))
        assert (await waiting).ids == expected.ids
        await engine.loaded()
        assert engine.memory.heaps[0].plan_agrees


async def test_what_a_first_prompt_needs_first_has_memory_first(open_engine: OpenEngine, blocks: Blocks) -> None:
    async with open_engine() as engine:
        await engine.loaded()
    layers = [claim.layer for block in blocks.planned for claim in block.claims]
    assert layers == sorted(layers)
    groups = [[claim.name for block in blocks.planned for claim in block.claims if claim.layer == n] for n in (-1, 1)]
    assert groups[0][0] == "embed"  # it is read while the workspace is allocated
    assert {"scratch", "logits", "last_token"} < set(groups[0])
    assert groups[1][:2] == ["layers.1.keys", "layers.1.values"]


async def test_a_closed_engine_does_not_wait_for_memory(
    open_engine: OpenEngine, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine() as engine:
        await engine.loaded()
    log, held = LayerLog(monkeypatch), HeldBlocks(monkeypatch, blocks.num_before(2))
    close = ArrivingPlaces.close

    async def letting_close(places: ArrivingPlaces) -> None:
        closing = asyncio.create_task(close(places))
        await asyncio.sleep(0)
        held.let(1)  # that which a thread is at
        await closing

    monkeypatch.setattr(ArrivingPlaces, "close", letting_close)
    async with asyncio.timeout(PATIENCE_S):
        async with open_engine() as engine:
            waiting = asyncio.create_task(answer(engine))
            await log.has(layer=1, count=1)
        with pytest.raises(EngineClosedError):
            await waiting


@pytest.mark.parametrize("layer", [1, 2])
async def test_memory_that_runs_out_behind_an_opened_engine_is_told_to_everybody(
    layer: int, open_engine: OpenEngine, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine() as engine:
        expected = await answer(engine)
    room, allocate = blocks.num_before(layer), Arena.allocate_block
    with monkeypatch.context() as patch:
        count = 0

        def limited(arena: Arena, sizes: Sequence[int]) -> tuple[ArenaSlice, ...]:
            nonlocal count
            count += 1
            if count > room:
                raise OutOfMemoryError("1 bytes of VRAM memory needed, 0 available")
            return allocate(arena, sizes)

        patch.setattr(Arena, "allocate_block", limited)
        async with asyncio.timeout(PATIENCE_S), open_engine() as engine:
            waiting = [asyncio.create_task(answer(engine)), asyncio.create_task(engine.logits(PROMPT))]
            for failing in (engine.loaded(), *waiting):
                with pytest.raises(OutOfMemoryError, match="0 available"):
                    await failing
    async with open_engine() as engine:
        assert (await answer(engine)).ids == expected.ids


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
        num_layers = engine.model_config.num_layers
    assert [len(log.steps(layer)) for layer in range(num_layers)] == [3] * num_layers
    assert recorded == [(128, layer) for layer in range(num_layers)]
