"""Waits for runs of the double of an NPU, none of which depends on how fast this machine is."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from tests.npu.fake_xrt import Npu

_PATIENCE_S = 60.0
_SLOWER = 10_000


async def runs_started(npu: Npu, count: int) -> None:
    """Wait until so many runs were started."""
    await asyncio.to_thread(_wait, npu, count)


def _wait(npu: Npu, count: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while len(npu.threads) < count:
        assert time.monotonic() < deadline, f"{len(npu.threads)} runs of {count} were started"
        time.sleep(0.001)


def limit_hangs_alone(npu: Npu, patch: pytest.MonkeyPatch) -> None:
    """Have runs waited for by a clock that all but stands still until one is stuck, and all others behind it.

    A short limit is then that of runs without an end alone, and others take the time that they take here.
    """
    began = time.monotonic()

    def monotonic() -> float:
        passed = time.monotonic() - began
        return passed if npu.hangs.is_set() else passed / _SLOWER

    patch.setattr("unicorn_async.npu.completion.time", SimpleNamespace(monotonic=monotonic))
