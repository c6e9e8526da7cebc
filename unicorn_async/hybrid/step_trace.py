"""What two devices did in the last steps, in the JSON that the Perfetto UI and chrome://tracing open."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from unicorn_async.loader.trace_file import TraceFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from unicorn_async.hybrid.busy import Span

Event: TypeAlias = "dict[str, object]"
_PROCESS, _NEAR_TRACK, _FAR_TRACK = 1, 1, 2
_KEPT_STEPS = 256


class StepTrace:
    """Keeps the spans of the last 256 steps. Format: "Trace Event Format" of Chromium's tracing."""

    def __init__(self, path: Path, near: str, far: str) -> None:
        """Trace two devices of these names; see `TraceFile` for what happens to the file before `write`."""
        self._names = {_NEAR_TRACK: f"model: {near}", _FAR_TRACK: f"attention: {far}"}
        self._steps: deque[tuple[Sequence[Span], Sequence[Span]]] = deque(maxlen=_KEPT_STEPS)
        self._file = TraceFile("step trace", path, self._text())

    def step(self, near: Sequence[Span], far: Sequence[Span]) -> None:
        """Note a step."""
        self._steps.append((near, far))

    def to_json(self) -> dict[str, object]:
        """Return the whole trace; times in it are microseconds since the first span."""
        tracks: list[Event] = [
            {"ph": "M", "name": "thread_name", "pid": _PROCESS, "tid": track, "args": {"name": name}}
            for track, name in self._names.items()
        ]
        start_s = min((span.start_s for near, far in self._steps for span in (*near, *far)), default=0.0)
        spans = [
            _event(span, track, start_s)
            for step in self._steps
            for track, device in zip((_NEAR_TRACK, _FAR_TRACK), step, strict=True)
            for span in device
        ]
        return {"traceEvents": [*tracks, *spans], "displayTimeUnit": "ms"}

    async def write(self) -> None:
        """Write what there is; no step is noted meanwhile.

        Raises:
            ConfigError: it can't be written.
        """
        await self._file.write(self._text)

    def _text(self) -> str:
        return json.dumps(self.to_json(), separators=(",", ":"))


def _event(span: Span, track: int, start_s: float) -> Event:
    return {
        "ph": "X",
        "name": f"layer {span.layer} {'AB'[span.half]}",
        "cat": "attention" if track == _FAR_TRACK else "model",
        "ts": round(1e6 * (span.start_s - start_s), 3),
        "dur": round(1e6 * (span.stop_s - span.start_s), 3),
        "pid": _PROCESS,
        "tid": track,
        "args": {"step": span.step, "half": "AB"[span.half], "layer": span.layer},
    }
