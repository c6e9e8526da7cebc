"""Kept blocks that are damaged or another model's, and disks that are full, hang or have another user."""

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
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.patience import PATIENCE_S
from unicorn_async.checkpoint.file_identity import identify_files
from unicorn_async.kv_store.block_file import write_block
from unicorn_async.kv_store.store import KVStore

from .answers import answer
from .kept_files import PROMPTS, counts, cut, flip, ready_store
from .kv_writer import FULL, NUM_WHOLE, WRITTEN
from .leftovers import no_leftovers

if TYPE_CHECKING:
    from unicorn_async.checkpoint.checkpoint import Checkpoint
    from unicorn_async.checkpoint.file_identity import FileIdentity
    from unicorn_async.gpu.device_info import DeviceInfo

    from .conftest import OpenEngine, WriteModel

pytestmark = pytest.mark.usefixtures("at_any_cost")


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
            reason = (
                "this process keeps this model's blocks there already: another engine, or a thread that the disk holds"
            )
            assert (store.counters.disk, second.outages) == (f"off: {reason}", {"kv_disk": reason})
            assert first.outages == {}
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
