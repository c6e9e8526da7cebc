"""What happened during a load, in the JSON that the Perfetto UI and chrome://tracing open."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TypeAlias

from unicorn_async.errors import ConfigError

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
        """A file stays what it is until `write`, a new one has no events; raises ConfigError if it can't be written."""
        self._path = path.resolve()  # what a link names is replaced, not the link
        self._start = time.perf_counter_ns()
        self._events: list[Event] = []
        self._tracks: dict[str, int] = {}
        self._lock = threading.Lock()
        self._next_id = 0
        self._bytes = 0
        try:
            if self._path.is_file():
                with self._path.open("a"):  # which changes nothing
                    pass
            else:
                self._path.write_text(self._text())
        except OSError as exc:
            raise self._error(exc) from exc

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

    def write(self) -> None:
        """Write what there is so far, in place of the file in one step; into a pipe or a device as it comes.

        Raises:
            ConfigError: it can't be written; a file is then what it was, also before the load.
        """
        try:
            if self._path.exists() and not self._path.is_file():
                self._path.write_text(self._text())
            else:
                self._replace(self._text())
        except OSError as exc:
            raise self._error(exc) from exc

    def _replace(self, text: str) -> None:
        descriptor, partial = tempfile.mkstemp(prefix=self._path.name, suffix=".part", dir=self._path.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            shutil.copymode(self._path, partial)
            Path(partial).replace(self._path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise

    def _text(self) -> str:
        return json.dumps(self.to_json(), separators=(",", ":"))

    def _error(self, cause: OSError) -> ConfigError:
        return ConfigError(f"load trace {self._path}: {cause.strerror}")

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
