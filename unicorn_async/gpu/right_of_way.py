"""Who goes first where a driver serves one thread that asks again and again before others."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class RightOfWay:
    """Taken by any number of threads at once; those that give it begin when nobody has it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_taken = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have it during the block."""
        with self._changed:
            self._num_taken += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_taken -= 1
                self._changed.notify_all()

    @contextmanager
    def given(self) -> Iterator[None]:
        """Begin the block when nobody has it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._num_taken)
        yield
