"""A KV cache that grows beside serving."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, cast

import pytest

from tests.patience import PATIENCE_S
from unicorn_async.engine.engine_loop import EngineLoop
from unicorn_async.engine.types import FinishReason
from unicorn_async.errors import DeviceLostError, EngineClosedError, OutOfMemoryError, PromptTooLongError
from unicorn_async.memory import kv_pieces
from unicorn_async.memory.kv_pieces import Numbering, Pieces
from unicorn_async.memory.kv_pool import KVPool
from unicorn_async.scheduler.scheduler import Scheduler
from unicorn_async.step.load_steps import LoadSteps

from .answers import answer, prompt_of

if TYPE_CHECKING:
    from unicorn_async.memory.kv_pool import NewBlocks
    from unicorn_async.scheduler.sequence import Sequence

    from .conftest import OpenEngine

_MAPPED = 33 << 20  # bytes that no heap serves


class Grower:
    """Lets a cache grow by so many pieces; the next ones wait for `let`, or fail."""

    def __init__(self, patch: pytest.MonkeyPatch, num_free: int = 1 << 20) -> None:
        self.failing: BaseException | None = None
        self.num_grown = 0
        self.asked = threading.Semaphore(0)
        self._turns = threading.Semaphore(num_free)
        grow = KVPool.grow

        def held(pool: KVPool) -> NewBlocks:
            self.asked.release()
            assert self._turns.acquire(timeout=PATIENCE_S)
            if self.failing is not None:
                raise self.failing
            self.num_grown += 1
            return grow(pool)

        patch.setattr(KVPool, "grow", held)

    def let(self, count: int = 1 << 20) -> None:
        self._turns.release(count)

    async def is_asked(self) -> None:
        """Wait until the next piece is asked for."""
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.to_thread(self.asked.acquire, timeout=PATIENCE_S)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pieces, of which the first hold 64 tokens.

    Each has more memory than it needs: small allocations of a software device would lie in this process's heap, as
    real pieces do not, too far from those that are mapped.
    """
    nbytes = cast("property", Pieces.nbytes).fget
    assert nbytes is not None
    monkeypatch.setattr(Pieces, "nbytes", property(lambda pieces: nbytes(pieces) + _MAPPED))
    monkeypatch.setattr(kv_pieces, "PIECE_BYTES", 1 << 18)
    monkeypatch.setattr(kv_pieces, "FIRST_TOKENS", 64)
    monkeypatch.setattr(kv_pieces, "_LEAST_REACH", 0)


@pytest.mark.parametrize(
    "model", ["gemma3", *(pytest.param(model, marks=pytest.mark.whole("other groups")) for model in ("llama", "lfm2"))]
)
async def test_answers_over_many_pieces_are_those_of_a_cache_in_one(
    model: str, open_engine: OpenEngine, request: pytest.FixtureRequest
) -> None:
    prompts = [prompt_of(length, length) for length in (9, 90, 200, 300)]
    async with open_engine(model) as engine:
        expected = [(await answer(engine, prompt, max_tokens=40)).ids for prompt in prompts]
        planned, whole = engine.stats().blocks_planned, engine.max_context
    request.getfixturevalue("small_pieces")
    async with asyncio.timeout(PATIENCE_S), open_engine(model) as engine:
        found = await asyncio.gather(*(answer(engine, prompt, max_tokens=40) for prompt in prompts))
        assert [each.ids for each in found] == expected
        await engine.cache_grown()
        assert planned <= engine.stats().blocks_planned and engine.max_context == whole
        assert engine.stats().preemptions == 0 == engine.stats().blocks_used
        assert engine._model.memory_plan.kv.pieces[0].count > 4
        heap = engine.memory.heaps[0]
        assert heap.to_come == 0 and heap.plan_agrees
        attention, plan = engine.attention, engine._model.memory_plan.kv
        assert attention.kv_cache_bytes == attention.kv_cache_bytes_now == plan.nbytes


async def test_a_first_prompt_is_answered_by_the_first_pieces_and_a_long_one_waits_for_its_own(
    small_pieces: None, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine("llama") as engine:
        expected = (await answer(engine, prompt_of(450))).ids
        num_first = engine._model.kv_pool.num_first  # type: ignore[union-attr]
    grower = Grower(monkeypatch, num_first)
    async with asyncio.timeout(PATIENCE_S), open_engine("llama") as engine:
        await answer(engine, prompt_of(20))
        stats = engine.stats()
        assert grower.num_grown == num_first
        assert 0 < stats.blocks_total < stats.blocks_planned
        heap = engine.memory.heaps[0]
        assert heap.to_come > 0 and heap.plan_agrees
        plan, attention = engine._model.memory_plan.kv, engine.attention
        assert (attention.kv_cache_bytes, attention.kv_cache_bytes_now) == (plan.nbytes, plan.first_bytes)
        long = asyncio.create_task(answer(engine, prompt_of(450)))
        assert len((await answer(engine, prompt_of(20))).ids) == 16 if not long.done() else True
        assert not long.done()
        grower.let()
        assert (await long).ids == expected


async def test_a_cache_that_can_not_grow_stays_as_it_is_and_says_so(
    small_pieces: None,
    open_engine: OpenEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_engine("llama") as engine:
        expected = (await answer(engine, prompt_of(20))).ids
        num_first = engine._model.kv_pool.num_first  # type: ignore[union-attr]
    grower = Grower(monkeypatch, num_first)
    grower.failing = None
    async with asyncio.timeout(PATIENCE_S), open_engine("llama") as engine:
        long = asyncio.create_task(answer(engine, prompt_of(450)))
        for _ in range(num_first + 1):
            await grower.is_asked()
        grower.failing = OutOfMemoryError("KV cache[9]: 65536 bytes of VRAM memory needed, 0 available")
        grower.let()
        with pytest.raises(OutOfMemoryError, match="0 available"):
            await long
        assert "0 available" in caplog.text and "stays as it is" in caplog.text
        stats = engine.stats()
        assert stats.blocks_total == stats.blocks_planned
        assert engine.max_context == stats.blocks_total * 16
        with pytest.raises(PromptTooLongError, match=f"context of {engine.max_context}"):
            await answer(engine, prompt_of(450))
        assert (await answer(engine, prompt_of(20))).ids == expected
        assert engine.memory.heaps[0].plan_agrees is False  # not all that was planned is there
        attention = engine.attention.to_json()
        there = engine._model.memory_plan.kv.first_bytes
        assert engine.kv_cache_bytes == attention["kv_cache_bytes"] == attention["kv_cache_bytes_now"] == there


@pytest.mark.parametrize("stop", [(), ("never",)])
async def test_an_answer_that_outgrows_what_could_be_grown_has_its_last_token_and_full_length(
    stop: tuple[str, ...], small_pieces: None, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(300)
    async with open_engine("llama", skip_tokenizer=not stop) as engine:
        expected = (await answer(engine, prompt, max_tokens=100, stop=stop)).ids
        num_first = engine._model.kv_pool.num_first  # type: ignore[union-attr]
    grower, lacks_blocks, is_stuck = Grower(monkeypatch, num_first), Scheduler.lacks_blocks, asyncio.Event()

    def noted(scheduler: Scheduler, sequence: Sequence) -> bool:
        if lacks := lacks_blocks(scheduler, sequence):
            is_stuck.set()
        return lacks

    monkeypatch.setattr(Scheduler, "lacks_blocks", noted)
    async with asyncio.timeout(PATIENCE_S), open_engine("llama", skip_tokenizer=not stop) as engine:
        asking = asyncio.create_task(answer(engine, prompt, max_tokens=100, stop=stop))
        await is_stuck.wait()
        grower.failing = OutOfMemoryError("KV cache[9]: 65536 bytes of VRAM memory needed, 0 available")
        grower.let()
        found, room = await asking, engine.max_context
        assert len(prompt) < room < len(prompt) + 100
        assert found.ids == expected[: room + 1 - len(prompt)]
        assert found.finish_reason is FinishReason.LENGTH


async def test_first_pieces_that_do_not_fit_are_told_to_everybody(
    small_pieces: None, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    Grower(monkeypatch).failing = OutOfMemoryError("0 available")
    async with asyncio.timeout(PATIENCE_S), open_engine("llama") as engine:
        for _ in range(2):
            with pytest.raises(OutOfMemoryError, match="0 available"):
                await answer(engine)


async def test_who_waits_for_the_load_is_told_what_did_not_fit(
    small_pieces: None, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where what follows the load is cancelled before the engine knows why."""
    grower, ending = Grower(monkeypatch, 0), asyncio.Event()
    run_steps = EngineLoop._run_steps

    async def slow_to_end(loop: EngineLoop) -> None:
        try:
            await run_steps(loop)
        finally:
            await ending.wait()

    async def never(steps: LoadSteps) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(EngineLoop, "_run_steps", slow_to_end)
    monkeypatch.setattr(LoadSteps, "_follow_layers", never)
    async with asyncio.timeout(PATIENCE_S), open_engine("llama") as engine:
        async for _ in engine.load_progress():
            pass
        loaded = asyncio.create_task(engine.loaded())
        grower.failing = OutOfMemoryError("0 available")
        grower.let()
        with pytest.raises(EngineClosedError):
            await engine._runner.load_followed()
        asyncio.get_running_loop().call_later(0.05, ending.set)
        with pytest.raises(OutOfMemoryError, match="0 available"):
            await loaded


async def test_a_device_that_is_lost_while_the_cache_grows_fails_the_engine(
    small_pieces: None, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    grower = Grower(monkeypatch, 8)
    async with asyncio.timeout(PATIENCE_S), open_engine("llama") as engine:
        grown = asyncio.create_task(engine.cache_grown())
        for _ in range(9):
            await grower.is_asked()
        grower.failing = DeviceLostError("vkAllocateMemory: VK_ERROR_DEVICE_LOST")
        grower.let()
        with pytest.raises(DeviceLostError):
            await grown
        with pytest.raises(DeviceLostError):
            await answer(engine)


async def test_an_engine_closes_while_its_cache_grows(
    small_pieces: None, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    grower = Grower(monkeypatch, 8)
    async with asyncio.timeout(PATIENCE_S):
        async with open_engine("llama") as engine:
            grown = asyncio.create_task(engine.cache_grown())
            for _ in range(9):
                await grower.is_asked()
            asyncio.get_running_loop().call_soon(grower.let, 1)  # that which a thread is at
        with pytest.raises(EngineClosedError):
            await grown
    assert grower.num_grown == 9


async def test_an_idle_engine_grows_once_its_model_is_loaded(small_pieces: None, open_engine: OpenEngine) -> None:
    async with asyncio.timeout(PATIENCE_S), open_engine("llama") as engine:
        await engine.cache_grown()
        assert engine.stats().blocks_total == engine.stats().blocks_planned
        assert engine.progress.done


async def test_answers_in_a_cache_that_stays_small_are_those_of_a_large_one(
    small_pieces: None, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt_of(length, length) for length in (9, 90, 200, 300)]
    async with open_engine("llama") as engine:
        expected = [(await answer(engine, prompt, max_tokens=40)).ids for prompt in prompts]
    blocks = Numbering.blocks
    known: set[int] = set()

    def near_alone(numbering: Numbering, start: int, num_blocks: int) -> range | None:
        known.add(start)
        return blocks(numbering, start, num_blocks) if len(known) == 1 else None

    monkeypatch.setattr(Numbering, "blocks", near_alone)
    async with asyncio.timeout(PATIENCE_S), open_engine("llama") as engine:
        found = await asyncio.gather(*(answer(engine, prompt, max_tokens=40) for prompt in prompts))
        assert [each.ids for each in found] == expected
        assert engine.stats().blocks_total == engine.stats().blocks_planned == 22
        assert engine.max_context == 352
