"""Holds back what a model's memory is allocated in, until a test lets it go on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tests.patience import PATIENCE_S
from unicorn_async.gpu.arena import Arena

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from unicorn_async.gpu.arena import ArenaSlice


class HeldBlocks:
    """Lets so many blocks be allocated; the others wait for `let`."""

    def __init__(self, patch: pytest.MonkeyPatch, num_free: int) -> None:
        self._turns = threading.Semaphore(num_free)
        allocate = Arena.allocate_block

        def held(arena: Arena, sizes: Sequence[int], *, gives_way: bool = False) -> tuple[ArenaSlice, ...]:
            assert self._turns.acquire(timeout=PATIENCE_S)
            return allocate(arena, sizes, gives_way=gives_way)

        patch.setattr(Arena, "allocate_block", held)

    def let(self, count: int) -> None:
        self._turns.release(count)
