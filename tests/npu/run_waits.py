"""Waits for runs of the double of an NPU, none of which depends on how fast this machine is."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tests.patience import wait_until

if TYPE_CHECKING:
    import pytest

    from tests.npu.fake_xrt import Npu

_SLOWER = 10_000


async def runs_started(npu: Npu, count: int) -> None:
    """Wait until so many runs were started."""
    await asyncio.to_thread(wait_until, lambda: len(npu.threads) >= count)


def limit_hangs_alone(npu: Npu, patch: pytest.MonkeyPatch) -> None:
    """Have runs waited for by a clock that all but stands still until one is stuck, and all others behind it.

    A short limit is then that of runs without an end alone, and others take the time that they take here.
    """
    began = time.monotonic()

    def monotonic() -> float:
        passed = time.monotonic() - began
        return passed if npu.hangs.is_set() else passed / _SLOWER

    patch.setattr("unicorn_async.npu.completion.time", SimpleNamespace(monotonic=monotonic))
