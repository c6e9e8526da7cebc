"""An engine and the cache of device-ready weights: what is written, what is taken, and what damage does."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from unicorn_async.cache.draft import EntryDraft
from unicorn_async.cache.entry import ENTRY_FILE, TENSORS_FILE
from unicorn_async.cache.folder import CacheFolder
from unicorn_async.cache.lookup import CacheState
from unicorn_async.checkpoint.safetensors import read_header
from unicorn_async.config import WeightScheme

from .answers import answer, prompt_of
from .checkpoint_files import write_model
from .loading_gate import LoadingGate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from unicorn_async.engine.engine import Engine
    from unicorn_async.gpu.device_info import DeviceInfo

    from .conftest import OpenEngine


class OpenCached(Protocol):
    """Opens an engine on a model whose weights become int4, with a cache of the test's own."""

    def __call__(self, **options: Any) -> AbstractAsyncContextManager[Engine]: ...


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model("llama", "bfloat16", tmp_path_factory.mktemp("cached") / "llama")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> CacheFolder:
    """The cache of the test; compiled pipelines stay in the session's."""
    monkeypatch.setattr("unicorn_async.engine.opening.weight_cache_folder", lambda: CacheFolder(tmp_path / "weights"))
    return CacheFolder(tmp_path / "weights")


@pytest.fixture
def open_cached(open_engine: OpenEngine, model: Path, folder: CacheFolder) -> OpenCached:
    @asynccontextmanager
    async def open_one(model: Path = model, **options: Any) -> AsyncIterator[Engine]:
        async with open_engine(model, **({"weights": WeightScheme.INT4, "weight_cache": True} | options)) as engine:
            yield engine

    return open_one


async def fill(open_cached: OpenCached) -> list[int]:
    """Have the entry written; return an answer of the model's."""
    async with open_cached() as engine:
        ids = (await answer(engine, prompt_of(40))).ids
        assert (await engine.cache_settled()).state is CacheState.WRITTEN, engine.cache
    return ids


def tensors_in(folder: CacheFolder) -> bytes:
    [stored] = folder.entries()
    return (stored.path / TENSORS_FILE).read_bytes()


def names_in(folder: CacheFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir()) if folder.path.exists() else []


async def test_the_second_load_is_a_copy_with_the_same_tokens(open_cached: OpenCached, folder: CacheFolder) -> None:
    expected = await fill(open_cached)
    before = tensors_in(folder)
    [stored] = folder.entries()
    assert stored.entry is not None
    os.utime(stored.path / ENTRY_FILE, (1000, 1000))
    async with open_cached() as engine:
        found = await answer(engine, prompt_of(40))
        assert (await engine.cache_settled()).state is CacheState.HIT
        assert engine.progress.from_cache
        assert engine.progress.bytes_total == sum(tensor.nbytes for tensor in stored.entry.tensors.values())
        assert not any(kernel.startswith("quantize_bf16") for kernel in engine.kernels)
    assert found.ids == expected
    assert tensors_in(folder) == before
    assert folder.entries()[0].last_used > 1000


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a byte of the embeddings": lambda path: flip(
        path / TENSORS_FILE, read_header(path / TENSORS_FILE)["embed"].offset
    ),
    "a byte of the last layer": lambda path: flip(
        path / TENSORS_FILE, read_header(path / TENSORS_FILE)["layers.2.down"].offset + 100
    ),
    "truncated": lambda path: os.truncate(path / TENSORS_FILE, 100_000),
    "tensors gone": lambda path: (path / TENSORS_FILE).unlink(),
    "entry.json gone": lambda path: (path / ENTRY_FILE).unlink(),
    "no JSON": lambda path: (path / ENTRY_FILE).write_text('{"format": 1'),
}
MISSING = ("truncated", "tensors gone", "entry.json gone")
GONE = pytest.mark.whole("files cut off or gone, which the cache's own tests show without an engine")


@pytest.mark.parametrize("how", [pytest.param(how, marks=GONE if how in MISSING else ()) for how in DAMAGE])
async def test_a_damaged_entry_costs_no_token_and_is_made_anew(
    how: str, open_cached: OpenCached, folder: CacheFolder, caplog: pytest.LogCaptureFixture
) -> None:
    expected = await fill(open_cached)
    before = tensors_in(folder)
    DAMAGE[how](folder.entries()[0].path)
    async with open_cached() as engine:
        assert (await answer(engine, prompt_of(40))).ids == expected
        assert (await engine.cache_settled()).state is CacheState.WRITTEN
        assert not engine.progress.from_cache
    assert tensors_in(folder) == before
    [said] = [record.message for record in caplog.records if "weight cache" in record.message]
    assert "the entry is removed, and made anew" in said
    async with open_cached() as engine:
        assert (await engine.cache_settled()).state is CacheState.HIT


async def test_a_file_cut_while_it_is_read_costs_no_token(
    open_cached: OpenCached, folder: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await fill(open_cached)
    gate = LoadingGate(monkeypatch, 150_000)
    async with open_cached() as engine:
        early = asyncio.create_task(answer(engine, prompt_of(40)))
        async for progress in engine.load_progress():
            if progress.layers_active:
                break
        os.truncate(folder.entries()[0].path / TENSORS_FILE, 4096)
        gate.open()
        assert (await early).ids == expected
        assert (await engine.cache_settled()).state is CacheState.WRITTEN


async def test_a_model_loads_while_another_process_writes_its_entry(
    open_cached: OpenCached, folder: CacheFolder
) -> None:
    await fill(open_cached)
    [stored] = folder.entries()
    folder.remove(stored.key)
    draft = folder.draft(stored.key)
    assert draft is not None
    async with open_cached() as engine:
        status = await engine.cache_settled()
        assert (status.state, status.reason) == (CacheState.MISS, "another process writes it")
    assert names_in(folder) == [f"{stored.key}.part"]
    draft.discard()


async def test_switched_off_or_of_no_use_nothing_is_written(open_cached: OpenCached, folder: CacheFolder) -> None:
    async with open_cached(weight_cache=False) as engine:
        assert (await engine.cache_settled()).text() == "off: switched off"
    async with open_cached(weights=WeightScheme.AUTO) as engine:
        status = await engine.cache_settled()
        assert status.state is CacheState.OFF
        assert "checkpoint itself loads as fast" in status.reason
    assert names_in(folder) == []


async def test_schemes_have_entries_of_their_own_within_the_limit(open_cached: OpenCached, folder: CacheFolder) -> None:
    await fill(open_cached)
    size = folder.used_bytes()
    async with open_cached(weights=WeightScheme.INT8, cache_bytes=10 * size) as engine:
        assert (await engine.cache_settled()).state is CacheState.WRITTEN
    assert {stored.entry.scheme for stored in folder.entries() if stored.entry} == {"int4", "int8"}
    async with open_cached(weights=WeightScheme.NF4, cache_bytes=2 * size) as engine:
        assert (await engine.cache_settled()).state is CacheState.WRITTEN
    assert [stored.entry.scheme for stored in folder.entries() if stored.entry] == ["nf4"]
    async with open_cached(cache_bytes=1000) as engine:
        status = await engine.cache_settled()
        assert status.state is CacheState.FAILED
        assert "the cache may have 1000" in status.reason
    assert len(folder.entries()) == 1


async def test_a_full_disk_is_a_line_in_the_log_and_no_more(
    open_cached: OpenCached, folder: CacheFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit of the process stands for the disk's: the kernel refuses in the middle of a write."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with open_cached() as engine:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        try:
            status = await engine.cache_settled()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert (status.state, status.reason) == (CacheState.FAILED, "File too large")
        assert len((await answer(engine)).ids) == 16
    messages = [record.message for record in caplog.records if record.name == "unicorn_async.cache.lookup"]
    assert messages == ["weight cache: not written: File too large"]  # compiled pipelines may not fit either
    assert names_in(folder) == []


async def test_a_folder_that_can_not_be_written_is_said(
    open_cached: OpenCached, folder: CacheFolder, caplog: pytest.LogCaptureFixture
) -> None:
    folder.path.write_text("in the way")
    async with open_cached() as engine:
        assert (await engine.cache_settled()).state is CacheState.FAILED
        assert len((await answer(engine)).ids) == 16
    assert len([record for record in caplog.records if record.name.startswith("unicorn_async")]) == 1


async def test_requests_are_answered_while_the_entry_is_written_and_closing_leaves_none(
    open_cached: OpenCached, folder: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, writing, going_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    write = EntryDraft.write

    def held(draft: EntryDraft, data: memoryview, offset: int) -> None:
        if offset > 100_000:
            loop.call_soon_threadsafe(writing.set)
            going_on.wait(60)
        write(draft, data, offset)

    monkeypatch.setattr(EntryDraft, "write", held)
    async with open_cached() as engine:
        await writing.wait()
        assert engine.cache.state is CacheState.WRITING
        assert 0 < engine.cache.written_bytes < engine.cache.nbytes
        assert len((await answer(engine)).ids) == 16
        assert len(names_in(folder)) == 1
        letting_go = asyncio.create_task(let_go(engine._model.load, going_on))
    await letting_go
    assert names_in(folder) == []


async def let_go(load: asyncio.Task[Any], going_on: threading.Event) -> None:
    """Set the event once the load is cancelled, or over."""
    while not load.cancelling() and not load.done():
        await asyncio.wait([load], timeout=0.01)
    going_on.set()


PROCESS = """
import asyncio, sys
from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.engine.engine import Engine

async def main():
    config = EngineConfig(device=sys.argv[2], weights=WeightScheme.INT4, max_context=64)
    async with Engine.open(sys.argv[1], config=config) as engine:
        print("open", flush=True)
        sys.stdin.readline()
        print((await engine.cache_settled()).state.value)

asyncio.run(main())
"""


async def test_two_processes_that_build_one_entry_leave_one(
    model: Path, tmp_path: Path, device_info: DeviceInfo, open_cached: OpenCached, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROCESS, str(model), str(device_info.index)),
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(2)
    ]
    states = [(await process.communicate(b"\n"))[0].decode().split()[-1] for process in processes]
    assert sorted(states) in (["hit", "written"], ["miss", "written"], ["written", "written"])
    folder = CacheFolder(tmp_path / "unicorn_async" / "weights")
    [stored] = folder.entries()
    assert names_in(folder) == [stored.key]
    monkeypatch.setattr("unicorn_async.engine.opening.weight_cache_folder", lambda: folder)
    async with open_cached() as engine:
        assert (await engine.cache_settled()).state is CacheState.HIT
