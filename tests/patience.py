"""How long tests wait for what has to come, on a machine of which any step may take seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 240.0


def wait_until(wanted: Callable[[], object]) -> None:
    """Block this thread, and the event loop if there is one in it, until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not wanted():
        assert time.monotonic() < deadline, f"it is not so after {PATIENCE_S} s"
        time.sleep(0.001)
