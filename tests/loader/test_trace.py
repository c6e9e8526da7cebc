"""A load's trace: what the Perfetto UI needs of it."""

from __future__ import annotations

import errno
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from unicorn_async.errors import ConfigError
from unicorn_async.loader.trace import LoadTrace


def events_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def test_reads_are_spans_of_their_threads_tracks(tmp_path: Path) -> None:
    trace = LoadTrace(tmp_path / "trace.json")
    for name in ("reader_0", "reader_1"):
        thread = threading.Thread(target=trace.read, args=("f", 16, 100, 5_000_000, 7_500_000), name=name)
        thread.start()
        thread.join()
    trace.write()
    events = events_of(tmp_path / "trace.json")
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    reads = [event for event in events if event["ph"] == "X"]
    assert [tracks[read["tid"]] for read in reads] == ["reader_0", "reader_1"]
    assert all(read["dur"] == 2500.0 and read["args"] == {"offset": 16, "bytes": 100} for read in reads)
    assert [event["args"]["bytes"] for event in events if event["ph"] == "C"] == [100, 200]


def test_device_work_and_layers_are_spans_that_may_overlap(tmp_path: Path) -> None:
    trace = LoadTrace(tmp_path / "trace.json")
    trace.submission("a", 600, 1000)
    trace.device_work("upload", "a", 10, 1000, 9000)
    trace.device_work("conversion", "b", 20, 2000, 8000)
    trace.layer(0, 500, 9500)
    trace.write()
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


def test_a_trace_that_can_not_be_written_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "trace.json"
    path.touch(0o640)
    path.write_text("an earlier trace")
    trace = LoadTrace(path)
    trace.layer(0, 1000, 2000)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(ConfigError, match="No space left"):
            trace.write()
    assert path.read_text() == "an earlier trace"
    assert list(tmp_path.iterdir()) == [path]
    trace.write()
    assert "layer 0" in json.dumps(events_of(path))
    assert (list(tmp_path.iterdir()), path.stat().st_mode & 0o777) == ([path], 0o640)


def test_a_link_stays_one_and_a_device_is_written_to(tmp_path: Path) -> None:
    link, path = tmp_path / "link", tmp_path / "trace.json"
    link.symlink_to(path)
    LoadTrace(link).write()
    assert link.is_symlink() and path.is_file() and not path.is_symlink()
    LoadTrace(Path("/dev/null")).write()
    assert Path("/dev/null").is_char_device()
