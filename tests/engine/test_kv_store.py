"""Blocks that the device has no room for come back from where they are kept, to the bit, and are not computed again."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from unicorn_async.checkpoint.file_identity import identify_files
from unicorn_async.config import EngineConfig
from unicorn_async.errors import ConfigError, OutOfMemoryError
from unicorn_async.kv_store.block_file import write_block
from unicorn_async.kv_store.disk_tier import DiskTier
from unicorn_async.kv_store.store import KVStore
from unicorn_async.memory import states
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.scheduler.block_keys import extend_keys
from unicorn_async.scheduler.fetch_costs import FetchCosts
from unicorn_async.scheduler.kept_blocks import BlockName
from unicorn_async.scheduler.sequence import Sequence

from .answers import answer, prompt_of
from .kv_writer import FULL, NUM_WHOLE, WRITTEN
from .leftovers import no_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.checkpoint.checkpoint import Checkpoint
    from unicorn_async.checkpoint.file_identity import FileIdentity
    from unicorn_async.engine.engine import Engine
    from unicorn_async.gpu.device_info import DeviceInfo

    from .conftest import OpenEngine, WriteModel

PATIENCE_S = 120.0
PROMPTS = [prompt_of(150, seed) for seed in range(4)]
ROOM = 400 << 10  # of the device's cache, for about two of the prompts


@pytest.fixture(autouse=True)
def at_any_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are kept and come back whatever that costs on this machine, and whatever its disk takes for it."""
    monkeypatch.setattr(FetchCosts, "pays", lambda *_: True)
    monkeypatch.setattr(FetchCosts, "disk_pays", lambda *_: True)
    monkeypatch.setattr("unicorn_async.kv_store.store._END_S", PATIENCE_S)
    monkeypatch.setattr("unicorn_async.kv_store.keeper._FLUSH_S", PATIENCE_S)
    monkeypatch.setattr("unicorn_async.kv_store.keeper.DiskTier", partial(DiskTier, patience_s=PATIENCE_S))


async def test_what_the_device_has_lost_comes_back_from_the_host(open_engine: OpenEngine) -> None:
    async with open_engine("gemma3", prefix_cache=False) as engine:
        expected = [(await answer(engine, prompt, max_tokens=4)).ids for prompt in PROMPTS]
    async with open_engine("gemma3", kv_host_bytes=64 << 20, kv_cache_bytes=ROOM, max_context=256) as engine:
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


async def ready_store(engine: Engine) -> KVStore:
    await engine.loaded()
    store = engine._model.kv_store
    assert store is not None
    await store.is_settled.wait()
    return store


@pytest.fixture
def disk(cache_folder: Path) -> Iterator[Path]:
    """The folder of kept blocks, which is empty."""
    yield cache_folder / "unicorn_async" / "kv"
    shutil.rmtree(cache_folder / "unicorn_async" / "kv", ignore_errors=True)


def modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}


async def with_logprobs(engine: Engine) -> list[object]:
    answers = [await answer(engine, prompt, top_logprobs=5, max_tokens=4) for prompt in PROMPTS[:2]]
    return [(token.id, token.logprob, token.top_logprobs) for made in answers for token in made.tokens]


async def test_a_restart_finds_what_was_computed_before_to_the_bit(disk: Path, open_engine: OpenEngine) -> None:
    async with open_engine("gemma3", kv_disk_bytes=64 << 20) as engine:
        await ready_store(engine)
        await with_logprobs(engine)
        expected = await with_logprobs(engine)  # behind blocks that the device still has
    assert modes(disk) == {0o700}
    async with open_engine("gemma3", kv_disk_bytes=64 << 20) as engine:
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


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-9] ^= 4
    file.write_bytes(data)


def flip_all(folder: Path, group: int) -> int:
    files = list(folder.glob(f"*/{group}-*.kv"))
    for file in files:
        flip(file)
    return len(files)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def be_a_link(file: Path) -> None:
    data = file.read_bytes()
    file.unlink()
    (file.parent / "elsewhere").write_bytes(data)
    file.symlink_to(file.parent / "elsewhere")


def damage_all(folder: Path) -> int:
    """Damage all files, in one way or another; returns how many there were."""
    files = sorted(folder.glob("*/*.kv"))
    for file, damage in zip(files, cycle((flip, cut, Path.unlink, be_a_link)), strict=False):
        damage(file)
    return len(files)


def state_files(folder: Path) -> list[Path]:
    return list(folder.glob("*/1-*.kv"))


async def test_a_state_that_is_cut_or_another_model_s_is_not_begun_with(
    disk: Path, open_engine: OpenEngine, model_directory: WriteModel, tmp_path: Path
) -> None:
    async with open_engine("rwkv7", kv_disk_bytes=64 << 20) as engine:
        await ready_store(engine)
        expected = (await answer(engine, PROMPTS[0], max_tokens=4)).ids
    (file,) = state_files(disk)
    other = shutil.copytree(model_directory("rwkv7"), tmp_path / "model")
    os.utime(other / "model.safetensors", ns=(1, 1))
    async with open_engine(other, kv_disk_bytes=64 << 20) as engine:
        await ready_store(engine)
        assert (await answer(engine, PROMPTS[0], max_tokens=4)).ids == expected
        assert engine.stats().prompt_tokens_found == 0
    cut(file)
    async with open_engine("rwkv7", kv_disk_bytes=64 << 20) as engine:
        await ready_store(engine)
        assert file not in state_files(disk)
        assert (await answer(engine, PROMPTS[0], max_tokens=4)).ids == expected
        assert engine.stats().prompt_tokens_found == 0


async def test_damaged_files_are_computed_anew(disk: Path, open_engine: OpenEngine) -> None:
    async with open_engine("llama", kv_disk_bytes=64 << 20) as engine:
        await ready_store(engine)
        expected = [(await answer(engine, prompt, max_tokens=4)).ids for prompt in PROMPTS[:2]]
    async with open_engine("llama", kv_disk_bytes=64 << 20) as engine:
        store = await ready_store(engine)
        assert damage_all(disk) == 18
        assert [(await answer(engine, prompt, max_tokens=4)).ids for prompt in PROMPTS[:2]] == expected
        assert store.counters.failures == 18
        assert store.counters.problem.startswith("reading a block: ")
        assert str(disk) not in store.counters.problem


async def test_who_comes_second_to_a_folder_goes_without(disk: Path, open_engine: OpenEngine) -> None:
    async with open_engine("llama", kv_disk_bytes=64 << 20) as first:
        await ready_store(first)
        async with open_engine("llama", kv_disk_bytes=64 << 20) as second:
            store = await ready_store(second)
            assert store.counters.disk == "off: another process keeps this model's blocks there"
            assert len((await answer(second, PROMPTS[0], max_tokens=2)).ids) == 2


async def test_nothing_is_kept_on_disk_of_a_model_whose_file_is_another_when_the_load_is_over(
    disk: Path,
    open_engine: OpenEngine,
    model_directory: WriteModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = shutil.copytree(model_directory("llama"), tmp_path / "model")
    weights = model / "model.safetensors"

    def replaced(checkpoint: Checkpoint) -> tuple[FileIdentity, ...]:
        other = shutil.copyfile(weights, tmp_path / "other")
        flip(other)
        other.replace(weights)
        return identify_files(checkpoint)

    monkeypatch.setattr("unicorn_async.kv_store.model_key.identify_files", replaced)
    async with open_engine(model, kv_disk_bytes=64 << 20) as engine:
        store = await ready_store(engine)
        assert len((await answer(engine, PROMPTS[0], max_tokens=2)).ids) == 2
    reason = f"{weights}: replaced by another file after its header was read"
    assert store.counters.disk == f"off: {reason}"
    assert counts(disk) == (0, 0)
    assert caplog.text.count(reason) == 1


async def test_a_full_disk_is_no_error_of_a_request(
    disk: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("unicorn_async.kv_store.disk_folder.write_block", full)
    async with open_engine("llama", kv_disk_bytes=64 << 20) as engine:
        store = await ready_store(engine)
        for prompt in PROMPTS[:2]:
            assert len((await answer(engine, prompt, max_tokens=2)).ids) == 2
    assert store.counters.problem == "writing a block: No space left on device"
    assert caplog.text.count("No space left on device") == 1


def facts_until_killed(model: Path, device: DeviceInfo) -> list[list[Any]]:
    """Return what a process told that was killed while it wrote a block."""
    command = [sys.executable, "-m", "tests.engine.kv_writer", str(model), str(device.index)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True) as process:
        assert process.stdout is not None
        try:
            return [json.loads(process.stdout.readline()) for _ in range(3)]
        finally:
            process.send_signal(signal.SIGKILL)


def counts(disk: Path) -> tuple[int, int]:
    """Return how many files of blocks there are, and how many of such as are not whole."""
    return len(list(disk.glob("*/*.kv"))), len(list(disk.glob("*/*.part")))


async def test_a_killed_process_leaves_whole_blocks_and_one_on_a_full_disk_answers(
    disk: Path, open_engine: OpenEngine, model_directory: WriteModel, device_info: DeviceInfo
) -> None:
    told = await asyncio.to_thread(facts_until_killed, model_directory("llama"), device_info)
    assert ["by half"] in told
    told.remove(["by half"])
    (on_full_disk, problem), (ids,) = told
    assert problem == "writing a block: File too large"
    num_whole, num_halves = counts(disk)
    assert num_whole >= NUM_WHOLE
    assert num_halves == 1
    async with open_engine("llama", kv_disk_bytes=64 << 20) as engine:
        store = await ready_store(engine)
        assert store.kept.num_on_disk == num_whole
        assert counts(disk) == (num_whole, 0)
        assert (await answer(engine, FULL, max_tokens=4)).ids == on_full_disk
        assert (await answer(engine, WRITTEN, max_tokens=4)).ids == ids
        assert store.counters.failures == 0
        assert store.counters.restored_blocks > 0


async def test_a_disk_that_hangs_holds_no_engine_s_end_and_none_of_its_memory(
    disk: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hangs, answers = threading.Event(), threading.Event()

    def hanging(*args: object) -> None:
        hangs.set()
        answers.wait()
        write_block(*args)  # type: ignore[arg-type]

    close, closing = KVStore.close, list[threading.Thread]()

    def noted(store: KVStore) -> None:
        closing.append(threading.current_thread())
        close(store)

    monkeypatch.setattr(KVStore, "close", noted)
    monkeypatch.setattr("unicorn_async.kv_store.disk_folder.write_block", hanging)
    monkeypatch.setattr("unicorn_async.kv_store.store._END_S", 0.01)
    monkeypatch.setattr("unicorn_async.kv_store.keeper._FLUSH_S", 0.01)
    with no_leftovers(monkeypatch):
        try:
            async with open_engine("llama", kv_disk_bytes=64 << 20) as engine:
                store = await ready_store(engine)
                assert len((await answer(engine, PROMPTS[0], max_tokens=2)).ids) == 2
                assert await asyncio.to_thread(hangs.wait, PATIENCE_S)
            assert "(writing a block)" in caplog.text and "within 0.01 s of the end, and left behind" in caplog.text
            assert threading.current_thread() not in closing, "the event loop would wait for the disk"
            assert store.folder is not None
            assert store.folder.is_open, "the thread that was left behind may write there"
        finally:
            answers.set()
    assert not store.folder.is_open


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


@pytest.mark.parametrize("model", ["lfm2", "qwen3_5", "rwkv7"])
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


@pytest.mark.parametrize("model", ["lfm2", "qwen3_5", "rwkv7"])
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
