"""Progress on the terminal: one line that is rewritten, or now and then a plain line where there is no terminal."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Self

from unicorn_async.cli.amounts import duration, rate, size
from unicorn_async.cli.interpreter import settle_interpreter
from unicorn_async.cli.memory_lines import measured_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import TextIO

    from unicorn_async.engine.types import EngineAPI, LoadProgress

_BAR_WIDTH = 24
_REDRAW_S = 0.1
_PLAIN_S = 5.0  # between plain lines, for logs
_MAIN_KERNELS = ("linear_", "attention_decode", "attention_prefill")
_CLEAR_LINE = "\r\x1b[K"


class ProgressLine:
    """The last line of a terminal, rewritten in place; `note` prints what is to stay, above it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._shown = False
        self._due = 0.0 if self._is_terminal else time.monotonic() + _PLAIN_S

    def update(self, text: str) -> None:
        """Show `text`, unless something was shown only just now."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + (_REDRAW_S if self._is_terminal else _PLAIN_S)
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(_CLEAR_LINE + text[:width])
            self._shown = True
        else:
            self._write(text + "\n")

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        self._write(text + "\n")

    def clear(self) -> None:
        """Take the rewritten line away."""
        if self._shown:
            self._write(_CLEAR_LINE)
            self._shown = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()


async def show_load(engine: EngineAPI, line: ProgressLine) -> LoadProgress:
    """Show how the model loads, until it is loaded; returns the last progress.

    Raises:
        UnicornError: the load failed.
    """
    progress = engine.progress
    async for progress in engine.load_progress():
        line.update(load_text(progress))
    settle_interpreter()
    speed = rate(progress.bytes_per_s)
    source = " from the cache" if progress.from_cache else ""
    made = f"; tokenizer made beside it in {duration(engine.tokenizer_s)}"
    line.note(f"loaded   {size(progress.bytes_total)}{source} in {duration(progress.seconds)} ({speed}){made}")
    line.note(measured_line(engine.device, engine.memory))
    if engine.kernels:
        line.note(kernels_text(engine.kernels))
    return progress


def kernels_text(names: Sequence[str]) -> str:
    """Return one line with the variants of matrix products and attention, on which a model's speed hangs."""
    main = [name for name in names if name.startswith(_MAIN_KERNELS)]
    others = len(names) - len(main)
    return f"kernels  {', '.join(main)}" + (f" and {others} more" if others else "")


def load_text(progress: LoadProgress) -> str:
    """Return one line about a load under way."""
    parts = [
        f"{bar(progress.share)} {size(progress.bytes_loaded)} of {size(progress.bytes_total)}",
        rate(progress.bytes_per_s),
        f"{progress.layers_active} of {progress.layers_total} layers active",
    ]
    if progress.seconds_left:
        parts.append(f"{duration(progress.seconds_left)} left")
    if progress.bytes_to_download:
        parts.append(f"{size(progress.bytes_downloaded)} of {size(progress.bytes_to_download)} downloaded")
    if progress.from_cache:
        parts.append("from the cache")
    return "loading  " + ", ".join(parts)


def download_text(progress: LoadProgress) -> str:
    """Return one line about a model whose load waits for a download."""
    if not progress.bytes_to_download:
        return "asking   the hub"
    share = progress.bytes_downloaded / progress.bytes_to_download
    come = f"{size(progress.bytes_downloaded)} of {size(progress.bytes_to_download)}"
    return f"bringing {bar(share)} {come} downloaded"


def bar(share: float) -> str:
    """Return a bar with its percentage; `share` is 0 to 1."""
    full = round(share * _BAR_WIDTH)
    return f"[{'#' * full}{'-' * (_BAR_WIDTH - full)}] {share:4.0%}"
