"""The log on the terminal, in lines of its own: not behind a progress line, and not within an answer."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.cli.progress import ProgressLine

_MAX_HELD = 100


class LogLines(logging.Handler):
    """Prints records above a progress line, or once an answer has ended; at most 100 of them wait for that."""

    def __init__(self, line: ProgressLine) -> None:
        super().__init__()
        self._line = line
        self._held: list[str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, or hold it; the caller has this handler's lock."""
        text = self.format(record)
        if self._held is not None and len(self._held) < _MAX_HELD:
            self._held.append(text)
        else:
            self._line.note(text)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold what is logged until the end of the block, which leaves the terminal at the beginning of a line."""
        self._held = []
        try:
            yield
        finally:
            self.acquire()
            try:
                texts, self._held = self._held, None
                for text in texts:
                    self._line.note(text)
            finally:
                self.release()


@contextmanager
def log_lines(line: ProgressLine) -> Iterator[LogLines]:
    """Have what the process would log to stderr printed in lines of its own for the block's time."""
    root, lines = logging.getLogger(), LogLines(line)
    replaced = [one for one in root.handlers if type(one) is logging.StreamHandler and one.stream is sys.stderr]
    for handler in replaced:
        root.removeHandler(handler)
        lines.setFormatter(handler.formatter)
    if replaced:
        root.addHandler(lines)
    try:
        yield lines
    finally:
        root.removeHandler(lines)
        for handler in replaced:
            root.addHandler(handler)
