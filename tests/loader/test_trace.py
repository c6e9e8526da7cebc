"""A load's trace: what the Perfetto UI needs of it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import aiofiles.os
import pytest

from tests.patience import PATIENCE_S
from unicorn_async import trace_file
from unicorn_async.errors import ConfigError
from unicorn_async.loader.trace import LoadTrace


def events_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_reads_are_spans_of_their_threads_tracks(tmp_path: Path) -> None:
    trace = LoadTrace(tmp_path / "trace.json")
    for name in ("reader_0", "reader_1"):
        thread = threading.Thread(target=trace.read, args=("f", 16, 100, 5_000_000, 7_500_000), name=name)
        thread.start()
        thread.join()
    await trace.write()
    events = events_of(tmp_path / "trace.json")
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    reads = [event for event in events if event["ph"] == "X"]
    assert [tracks[read["tid"]] for read in reads] == ["reader_0", "reader_1"]
    assert all(read["dur"] == 2500.0 and read["args"] == {"offset": 16, "bytes": 100} for read in reads)
    assert [event["args"]["bytes"] for event in events if event["ph"] == "C"] == [100, 200]


async def test_device_work_and_layers_are_spans_that_may_overlap(tmp_path: Path) -> None:
    trace = LoadTrace(tmp_path / "trace.json")
    trace.submission("a", 600, 1000)
    trace.device_work("upload", "a", 10, 1000, 9000)
    trace.device_work("conversion", "b", 20, 2000, 8000)
    trace.layer(0, 500, 9500)
    await trace.write()
    events = events_of(tmp_path / "trace.json")
    phases = Counter((event["ph"], event["cat"]) for event in events if event["ph"] != "M")
    assert phases == Counter(
        {(phase, kind): 1 for phase in "be" for kind in ("submit", "upload", "conversion", "layer")}
        | {("i", "layer"): 1}
    )
    begins = {event["id"]: event for event in events if event["ph"] == "b"}
    ends = {event["id"]: event for event in events if event["ph"] == "e"}
    assert begins.keys() == ends.keys() and len(begins) == 4
    assert all(ends[key]["ts"] > begins[key]["ts"] and ends[key]["name"] == begins[key]["name"] for key in begins)
    assert all({"ph", "name", "pid", "tid"} <= event.keys() for event in events)


def test_a_file_that_can_not_be_written_is_an_error_before_the_load(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        LoadTrace(tmp_path / "none" / "trace.json")
    with pytest.raises(ConfigError, match="Is a directory"):
        LoadTrace(tmp_path)


def test_a_trace_that_is_never_written_has_no_events_or_is_the_earlier_one(tmp_path: Path) -> None:
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("an earlier trace")
    LoadTrace(new)
    LoadTrace(old)
    assert len(events_of(new)) == 1
    assert old.read_text() == "an earlier trace"


async def test_a_trace_that_can_not_be_written_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "trace.json"
    path.touch(0o640)
    path.write_text("an earlier trace")
    trace = LoadTrace(path)
    trace.layer(0, 1000, 2000)
    with monkeypatch.context() as patch:
        patch.setattr(aiofiles.os, "replace", full)
        with pytest.raises(ConfigError, match="No space left"):
            await trace.write()
    assert path.read_text() == "an earlier trace"
    assert names_in(tmp_path) == ["trace.json"]
    await trace.write()
    assert "layer 0" in json.dumps(events_of(path))
    assert (names_in(tmp_path), path.stat().st_mode & 0o777) == (["trace.json"], 0o640)


async def test_a_link_stays_one_and_a_device_is_written_to(tmp_path: Path) -> None:
    link, path = tmp_path / "link", tmp_path / "trace.json"
    link.symlink_to(path)
    await LoadTrace(link).write()
    assert link.is_symlink() and path.is_file() and not path.is_symlink()
    await LoadTrace(Path("/dev/null")).write()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


async def test_a_pipe_gets_the_trace_alone_and_nothing_waits_for_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "_PATIENCE_S", PATIENCE_S)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    trace = LoadTrace(pipe)
    with pytest.raises(ConfigError, match=f"load trace {pipe}: No such device or address"):
        await trace.write()
    for layer in range(2000):  # more than a pipe holds
        trace.layer(layer, 1000, 2000)
    reader = os.open(pipe, os.O_RDWR)  # as a writer too, so that nothing is the end of what comes

    def read() -> bytes:
        content = b""
        while not content.endswith(b'"displayTimeUnit":"ms"}'):
            content += os.read(reader, 1 << 16)
        return content

    reading = asyncio.create_task(asyncio.to_thread(read))
    await trace.write()
    events = json.loads(await reading)["traceEvents"]
    os.close(reader)
    assert sum(event["ph"] == "i" for event in events) == 2000


async def test_a_reader_that_stops_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "_PATIENCE_S", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    trace = LoadTrace(pipe)
    for layer in range(2000):
        trace.layer(layer, 1000, 2000)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(ConfigError, match="nobody reads from it"):
            await trace.write()
    finally:
        os.close(reader)


async def test_a_cancelled_write_is_done_first(tmp_path: Path) -> None:
    trace = LoadTrace(tmp_path / "trace.json")
    trace.layer(0, 1000, 2000)
    writing = asyncio.create_task(trace.write())
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert "layer 0" in json.dumps(events_of(tmp_path / "trace.json"))
    assert names_in(tmp_path) == ["trace.json"]
