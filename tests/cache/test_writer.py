"""Writing an entry from device memory: the right bytes, or nothing at all."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.loader.loading import Loading, descriptors_of, reader_threads
from unicorn_async.cache import writer as cache_writer
from unicorn_async.cache.draft import EntryDraft
from unicorn_async.cache.entry import TENSORS_FILE
from unicorn_async.cache.folder import CacheFolder
from unicorn_async.cache.lookup import CacheLookup, CacheState, CacheStatus, WeightCache
from unicorn_async.cache.writer import CacheWriter, Origin
from unicorn_async.checkpoint.safetensors import read_header
from unicorn_async.config import WeightScheme
from unicorn_async.errors import DeviceLostError, OutOfMemoryError
from unicorn_async.gpu.timeline import Timeline
from unicorn_async.loader.staging import StagingRing
from unicorn_async.ops.checksum import Checksum
from unicorn_async.ops.host_checksum import HostChecksum

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.cache.entry import CacheEntry
    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import MemoryKind

KEY = "0123456789abcdef" * 2


class Writing:
    """Loaded weights, mapped or not, and a cache to write them to."""

    def __init__(self, device: Device, folder: Path, *, mapped: bool) -> None:
        self.loading = Loading(device, folder / "model", mapped=mapped)
        self.folder = CacheFolder(folder / "weights")
        self.cache = WeightCache(self.folder, CacheLookup(CacheStatus(CacheState.MISS, "", KEY)))

    def writer(self, **options: Any) -> CacheWriter:
        loading, device = self.loading, self.loading.device
        origin = Origin("small", loading.checkpoint, WeightScheme.INT4, "")
        checksum = Checksum(device.info, device.kernels)
        return CacheWriter(device, loading.plan, loading.places, self.cache, checksum, origin, **options)

    def num_open_files(self) -> int:
        return descriptors_of([*self.loading.checkpoint.files, *self.folder.path.rglob("*")])

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.path.iterdir()) if self.folder.path.exists() else []


@pytest.fixture(params=[True, False], ids=["mapped", "not mapped"])
async def writing(device: Device, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    before = device.memory.num_buffers, device.memory.used_bytes, device.live_objects()
    made = Writing(device, tmp_path, mapped=request.param)
    stream = made.loading.stream()
    await stream.run()
    await stream.close()
    yield made
    made.loading.close()
    assert (device.memory.num_buffers, device.memory.used_bytes, device.live_objects()) == before
    assert not reader_threads()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("unicorn-cache")]
    assert made.num_open_files() == 0


def check_entry(writing: Writing) -> None:
    entry = writing.folder.find(KEY)
    assert entry is not None
    data = (writing.folder.folder_of(KEY) / TENSORS_FILE).read_bytes()
    header = read_header(writing.folder.folder_of(KEY) / TENSORS_FILE)
    for dest in writing.loading.plan.destinations:
        start = header[dest.name].offset
        content = data[start : start + dest.nbytes]
        assert content == writing.loading.expected(dest.name, dest.dtype), dest.name
        checksum = HostChecksum()
        checksum.update(memoryview(content))
        assert checksum.value() == entry.tensors[dest.name].checksum


@pytest.mark.parametrize("keeps_pages", [True, False])
async def test_an_entry_has_what_the_device_has(
    writing: Writing, keeps_pages: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_writer, "CHUNK_BYTES", 512)
    monkeypatch.setattr(cache_writer, "_SYNC_BYTES", 2000)
    await writing.writer(keeps_pages=keeps_pages).run()
    status = writing.cache.status
    assert status.state is CacheState.WRITTEN
    assert status.written_bytes == writing.loading.plan.dest_bytes
    assert writing.names() == [KEY]
    check_entry(writing)


@pytest.mark.parametrize(("free", "drops"), [(None, False), (1 << 40, False), (1000, True)])
async def test_a_large_entry_is_not_left_in_memory(
    writing: Writing, free: int | None, drops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[EntryDraft] = []
    monkeypatch.setattr(cache_writer, "CHUNK_BYTES", 512)
    monkeypatch.setattr(cache_writer, "_SYNC_BYTES", 2000)
    monkeypatch.setattr(cache_writer, "HostMemory", lambda: SimpleNamespace(available_bytes=lambda: free))
    monkeypatch.setattr(EntryDraft, "drop_pages", lambda draft: dropped.append(draft))
    await writing.writer().run()
    assert bool(dropped) == drops
    check_entry(writing)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("room", [0, 1, 5000, 9000])
async def test_a_disk_that_refuses_leaves_nothing(
    writing: Writing, code: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite

    def refuse(descriptor: int, data: memoryview, offset: int) -> int:
        if offset + len(data) <= room:
            return pwrite(descriptor, data, offset)
        if offset < room:
            return pwrite(descriptor, data[: room - offset], offset)  # as much as there is room for
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", refuse)
    await writing.writer().run()
    assert (writing.cache.status.state, writing.cache.status.reason) == (CacheState.FAILED, os.strerror(code))
    assert writing.names() == []


@pytest.mark.parametrize("call", ["fsync", "ftruncate", "rename"])
async def test_an_entry_that_can_not_be_finished_leaves_nothing(
    writing: Writing, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, refuse)
    await writing.writer().run()
    assert writing.cache.status.state is CacheState.FAILED
    assert writing.names() == []


@pytest.mark.parametrize("change", ["written to", "replaced", "changed", "truncated", "No such file"])
async def test_what_was_made_of_a_file_that_is_another_now_is_given_up(
    writing: Writing, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = writing.loading.checkpoint.files[-1]
    content, pwrite, changed = path.read_bytes(), os.pwrite, []

    def write_behind(descriptor: int, data: memoryview, offset: int) -> int:
        if not changed:
            changed.append(path)
            if change in ("replaced", "No such file"):
                path.rename(path.with_suffix(".old"))
            if change != "No such file":
                path.write_bytes({"changed": content + b"1", "truncated": content[:-1]}.get(change, content))
            if change == "written to":
                os.utime(path, ns=(0, 1))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", write_behind)
    await writing.writer().run()
    status = writing.cache.status
    assert (status.state, str(path) in status.reason, change in status.reason) == (CacheState.FAILED, True, True)
    assert writing.names() == []


async def test_an_entry_s_sources_are_the_files_as_they_were_opened(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one is written to when nobody looks any more: verifying finds that out."""
    files, commit = writing.loading.checkpoint.files, EntryDraft.commit
    expected = [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]

    def late(draft: EntryDraft, entry: CacheEntry) -> bool:
        os.utime(files[0], ns=(0, 1))
        return commit(draft, entry)

    monkeypatch.setattr(EntryDraft, "commit", late)
    await writing.writer().run()
    entry = writing.folder.find(KEY)
    assert entry is not None
    assert [(source.path, source.nbytes, source.mtime_ns) for source in entry.sources] == expected


MOMENTS = [
    (CacheFolder, "clean"),
    (CacheFolder, "make_room"),
    (EntryDraft, "write"),
    (EntryDraft, "sync"),
    (EntryDraft, "commit"),
    (StagingRing, "acquire"),
    (StagingRing, "release"),
    (Timeline, "reached"),
    (WeightCache, "wrote"),
]


@pytest.mark.parametrize("moment", [*range(1, 24), 30, 40, 50])
async def test_cancelled_at_any_moment_it_leaves_a_whole_entry_or_none(
    writing: Writing, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, count = asyncio.get_running_loop(), 0
    monkeypatch.setattr(cache_writer, "CHUNK_BYTES", 2048)
    monkeypatch.setattr(cache_writer, "_SYNC_BYTES", 4000)

    def counting(call: Any) -> Any:
        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == moment:
                loop.call_soon_threadsafe(task.cancel)
            return call(*arguments, **options)

        return counted

    for owner, name in MOMENTS:
        monkeypatch.setattr(owner, name, counting(getattr(owner, name)))
    task = asyncio.create_task(writing.writer().run())
    await asyncio.wait([task])
    if writing.names():
        assert writing.names() == [KEY]
        check_entry(writing)
    else:
        assert task.cancelled()


async def test_cancelled_before_it_begins_it_leaves_nothing(writing: Writing) -> None:
    task = asyncio.create_task(writing.writer().run())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert writing.names() == []


@pytest.mark.parametrize("failing", ["checksums", "staging"])
async def test_memory_that_does_not_suffice_is_no_error(
    writing: Writing, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = writing.loading.device.memory
    allocate = memory.allocate

    def limited(nbytes: int, kind: MemoryKind, *, name: str, **options: Any) -> object:
        if name.startswith(failing):
            raise OutOfMemoryError(f"{name}: full")
        return allocate(nbytes, kind, name=name, **options)

    monkeypatch.setattr(memory, "allocate", limited)
    await writing.writer().run()
    assert writing.cache.status.state is CacheState.FAILED
    assert writing.cache.status.reason.endswith("full")
    assert writing.names() == []


async def test_a_lost_device_is_an_error(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lose(ring: StagingRing) -> None:
        raise DeviceLostError("gone")

    monkeypatch.setattr(StagingRing, "acquire", lose)
    with pytest.raises(DeviceLostError):
        await writing.writer().run()
    assert writing.names() == []


async def test_an_entry_beyond_the_limit_is_not_begun(writing: Writing) -> None:
    await writing.writer(limit=100).run()
    assert "the cache may have 100" in writing.cache.status.reason
    assert writing.names() == []
