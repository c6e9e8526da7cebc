"""What happened during a load, in the JSON that the Perfetto UI and chrome://tracing open."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, TypeAlias

from unicorn_async.loader.trace_file import TraceFile

if TYPE_CHECKING:
    from pathlib import Path

Event: TypeAlias = "dict[str, object]"
_PROCESS = 1
_LAYER_TRACK, _FIRST_READER_TRACK = 1, 10


class LoadTrace:
    """Collects events of one load from any thread; times are `time.perf_counter_ns`.

    Reads are spans of their thread's track. Submissions, with what they wait for others and for the driver, uploads and
    conversions, from the end of their submission to completion, checks, with their submission, and layers, from their
    first read to the moment the device may use them, overlap: each is an asynchronous span of its category.
    Format: "Trace Event Format" of Chromium's tracing.
    """

    def __init__(self, path: Path) -> None:
        """Begin a trace; see `TraceFile` for what happens to the file before `write`."""
        self._start = time.perf_counter_ns()
        self._events: list[Event] = []
        self._tracks: dict[str, int] = {}
        self._lock = threading.Lock()
        self._next_id = 0
        self._bytes = 0
        self._file = TraceFile("load trace", path, self._text())

    def read(self, file: str, offset: int, nbytes: int, started: int, ended: int) -> None:
        """Note a read of the calling thread."""
        with self._lock:
            track = self._tracks.setdefault(threading.current_thread().name, _FIRST_READER_TRACK + len(self._tracks))
            self._events.append(
                self._event("X", f"read {file}", "read", started, track)
                | {"dur": (ended - started) / 1e3, "args": {"offset": offset, "bytes": nbytes}}
            )
            self._bytes += nbytes
            self._events.append(
                self._event("C", "bytes read", "read", ended, _LAYER_TRACK) | {"args": {"bytes": self._bytes}}
            )

    def submission(self, name: str, started: int, ended: int) -> None:
        """Note that something was handed to the driver, from when that was asked for to when the driver had it."""
        self._span("submit", name, started, ended, {})

    def device_work(self, kind: str, name: str, nbytes: int, started: int, ended: int) -> None:
        """Note an upload, a conversion or a check, as `kind` says."""
        self._span(kind, name, started, ended, {"bytes": nbytes})

    def layer(self, layer: int, started: int, ended: int) -> None:
        """Note that a layer is active."""
        self._span("layer", f"layer {layer}", started, ended, {})
        with self._lock:
            self._events.append(self._event("i", f"layer {layer} is active", "layer", ended, _LAYER_TRACK) | {"s": "p"})

    def to_json(self) -> dict[str, object]:
        """Return the whole trace; times in it are microseconds since this object was made."""
        with self._lock:
            names = [self._track_name(_LAYER_TRACK, "layers")]
            names += [self._track_name(track, name) for name, track in self._tracks.items()]
            return {"traceEvents": [*names, *self._events], "displayTimeUnit": "ms"}

    async def write(self) -> None:
        """Write what there is so far.

        Raises:
            ConfigError: it can't be written; a file is then what it was, also before the load.
        """
        await self._file.write(self._text)

    def _text(self) -> str:
        return json.dumps(self.to_json(), separators=(",", ":"))

    def _span(self, category: str, name: str, started: int, ended: int, args: dict[str, object]) -> None:
        with self._lock:
            self._next_id += 1
            for phase, moment in (("b", started), ("e", ended)):
                event = self._event(phase, name, category, moment, _LAYER_TRACK)
                self._events.append(event | {"id": self._next_id, "args": args})

    def _event(self, phase: str, name: str, category: str, moment: int, track: int) -> Event:
        time_us = (moment - self._start) / 1e3
        return {"ph": phase, "name": name, "cat": category, "ts": time_us, "pid": _PROCESS, "tid": track}

    @staticmethod
    def _track_name(track: int, name: str) -> Event:
        return {"ph": "M", "name": "thread_name", "pid": _PROCESS, "tid": track, "args": {"name": name}}
