"""Blocks that the device has no room for come back from where they are kept, to the bit, and are not computed again."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest

from unicorn_async.config import EngineConfig, KVDType
from unicorn_async.errors import ConfigError, OutOfMemoryError
from unicorn_async.memory import states
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_keys import extend_keys
from unicorn_async.scheduler.kept_blocks import BlockName
from unicorn_async.scheduler.sequence import Sequence

from .answers import answer
from .kept_files import PROMPTS, flip_all, ready_store

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.engine.engine import Engine

    from .conftest import OpenEngine

pytestmark = pytest.mark.usefixtures("at_any_cost")
ROOM = 400 << 10  # of the device's cache, for about two of the prompts
LATENTS_ROOM = 200 << 10  # likewise, of a token's latents in two layers


@pytest.mark.parametrize(("model", "room"), [("gemma3", ROOM), ("deepseek_v2_lite", LATENTS_ROOM)])
async def test_what_the_device_has_lost_comes_back_from_the_host(
    model: str, room: int, open_engine: OpenEngine
) -> None:
    async with open_engine(model, prefix_cache=False) as engine:
        expected = [(await answer(engine, prompt, max_tokens=4)).ids for prompt in PROMPTS]
    async with open_engine(model, kv_host_bytes=64 << 20, kv_cache_bytes=room, max_context=256) as engine:
        await engine.loaded()
        for _ in range(2):
            answers = [await answer(engine, prompt, max_tokens=4) for prompt in PROMPTS]
            assert [made.ids for made in answers] == expected
        assert [made.tokens[0].num_prompt_found for made in answers] == [144] * 4
        stats = engine.stats().kv_store
        assert stats is not None
        assert stats.restored_blocks >= 9 * 3
        assert stats.failures == 0
        assert engine.stats().tokens_prefilled < 4 * 151 + 4 * 10
        assert engine.memory.heaps[0].plan_agrees


def modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}


async def with_logprobs(engine: Engine) -> list[object]:
    answers = [await answer(engine, prompt, top_logprobs=5, max_tokens=4) for prompt in PROMPTS[:2]]
    return [(token.id, token.logprob, token.top_logprobs) for made in answers for token in made.tokens]


@pytest.mark.parametrize(
    ("model", "kind"), [("gemma3", KVDType.F16), ("glm4_moe_lite", KVDType.F16), ("glm4_moe_lite", KVDType.INT8)]
)
async def test_a_restart_finds_what_was_computed_before_to_the_bit(
    model: str, kind: KVDType, disk: Path, open_engine: OpenEngine
) -> None:
    async with open_engine(model, kv_disk_bytes=64 << 20, kv_dtype=kind) as engine:
        await ready_store(engine)
        await with_logprobs(engine)
        expected = await with_logprobs(engine)  # behind blocks that the device still has
    assert modes(disk) == {0o700}
    async with open_engine(model, kv_disk_bytes=64 << 20, kv_dtype=kind) as engine:
        store = await ready_store(engine)
        assert await with_logprobs(engine) == expected
        assert engine.stats().prompt_tokens_found == 2 * 144
        assert (store.counters.read_blocks, store.counters.failures) == (store.counters.restored_blocks, 0)
        assert store.counters.read_blocks >= 18


@pytest.mark.parametrize("model", ["llama", "qwen3_5"])
async def test_a_beginning_that_always_has_a_user_is_found_after_a_crash(
    model: str, disk: Path, open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_alike = [[*PROMPTS[0], *PROMPTS[seed][:40]] for seed in (1, 2)]
    async with open_engine(model, prefix_cache=False) as engine:
        expected = (await answer(engine, begun_alike[1], max_tokens=4)).ids
    async with open_engine(model, kv_disk_bytes=64 << 20) as engine:
        store = await ready_store(engine)
        loop, most = engine._loop, SamplingParams(max_tokens=300, ignore_eos=True)
        held = engine.stream(PROMPTS[0], most)
        await anext(held)
        await answer(engine, begun_alike[0], max_tokens=4)
        assert loop._scheduler.num_running == 1
        monkeypatch.setattr(loop._scheduler, "schedule", lambda **_: None)  # so that it does not end
        keys = extend_keys(Sequence("r", tuple(PROMPTS[0]), most, seed=0), 9, 16)
        names = [
            *(BlockName(0, key) for key in keys),
            *(BlockName(group, keys[-1]) for group in range(len(store.kept.slots))),
        ]
        while not all(map(store.kept.is_on_disk, names)):
            loop._keeper.wake()
            await asyncio.sleep(0.01)
        shutil.copytree(disk, tmp_path / "crashed")
        monkeypatch.undo()
        await held.aclose()
    shutil.rmtree(disk)
    shutil.copytree(tmp_path / "crashed", disk)
    async with open_engine(model, kv_disk_bytes=64 << 20) as engine:
        await ready_store(engine)
        assert (await answer(engine, begun_alike[1], max_tokens=4)).ids == expected
        assert engine.stats().prompt_tokens_found == 144


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix_cache": False}, "kv_host_bytes: .* prefix_cache is off"),
        ({"attention": "vulkan:0"}, "kv_host_bytes: not with attention vulkan:0"),
    ],
)
def test_options_that_exclude_a_store_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(kv_host_bytes=1 << 20, **options)  # type: ignore[arg-type]


async def test_one_with_states_of_fixed_size_has_no_store_without_memory_for_copies(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "_MOST_COPIES", 0)
    with pytest.raises(OutOfMemoryError, match=r"kv_disk_bytes: there is no memory for a copy of a state of \d"):
        async with open_engine("qwen3_5", kv_disk_bytes=1 << 20):
            pass


@pytest.mark.parametrize("model", ["llama", "rwkv7"])
async def test_a_disk_without_room_for_a_block_is_refused_with_what_one_needs(
    model: str, open_engine: OpenEngine
) -> None:
    with pytest.raises(ConfigError, match=r"kv_disk_bytes: the least .* of this model has [\d,]+ bytes, got 1,024"):
        async with open_engine(model, kv_disk_bytes=1024):
            pass


@pytest.mark.parametrize("model", ["lfm2", "qwen3_5", "rwkv7", "lfm3"])
async def test_states_of_fixed_size_come_back_from_the_host_with_their_blocks(
    model: str, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine(model, prefix_cache=False) as engine:
        expected = [(await answer(engine, prompt, max_tokens=4)).ids for prompt in PROMPTS]
    monkeypatch.setattr(states, "_MOST_COPIES", 2)
    async with open_engine(model, kv_host_bytes=64 << 20, max_context=256) as engine:
        await ready_store(engine)
        for _ in range(2):
            answers = [await answer(engine, prompt, max_tokens=4) for prompt in PROMPTS]
            assert [made.ids for made in answers] == expected
        assert [made.tokens[0].num_prompt_found for made in answers] == [144] * 4
        stats = engine.stats().kv_store
        assert stats is not None and stats.failures == 0
        assert stats.restored_blocks >= 4  # the states; their blocks are still on the device
        assert engine.memory.heaps[0].plan_agrees


@pytest.mark.parametrize("model", ["lfm2", "qwen3_5", "rwkv7", "lfm3", "granite_hybrid"])
async def test_a_restart_finds_states_of_fixed_size_to_the_bit_and_computes_without_a_damaged_one(
    model: str, disk: Path, open_engine: OpenEngine
) -> None:
    async with open_engine(model, kv_disk_bytes=64 << 20) as engine:
        await ready_store(engine)
        first = [(await answer(engine, prompt, max_tokens=4)).ids for prompt in PROMPTS[:2]]
        expected = await with_logprobs(engine)
    async with open_engine(model, kv_disk_bytes=64 << 20) as engine:
        store = await ready_store(engine)
        assert await with_logprobs(engine) == expected
        assert engine.stats().prompt_tokens_found == 2 * 144
        assert (store.counters.read_blocks, store.counters.failures) == (store.counters.restored_blocks, 0)
        group = len(store.kept.block_nbytes) - 1
    assert flip_all(disk, group) == 2
    async with open_engine(model, kv_disk_bytes=64 << 20) as engine:
        store = await ready_store(engine)
        assert [(await answer(engine, prompt, max_tokens=4)).ids for prompt in PROMPTS[:2]] == first
        assert engine.stats().prompt_tokens_found == 0
        assert store.counters.failures == 2
        assert store.counters.problem == "reading a block: a block's file: its bytes are not those of its checksum"
