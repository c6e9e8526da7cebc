"""A system that allows few threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def allow_threads(patch: pytest.MonkeyPatch, count: int) -> None:
    """Have the system start so many more threads."""
    start, left = threading.Thread.start, [count]

    def limited(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    patch.setattr(threading.Thread, "start", limited)
