"""Cancels work at turns of the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import pytest

_LATER = (1, 4, 10)  # turns to a second cancellation


class Turns:
    """Counts how often something is put into the event loop's queue, as every await's end is; cancels a task then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self._count = 0
        self._at: tuple[int, ...] = ()
        self._task: asyncio.Task[Any] | None = None
        self._call_soon = loop.call_soon
        monkeypatch.setattr(loop, "call_soon", self._counted)

    async def cancel_at_each(
        self, work: Callable[[], Coroutine[Any, Any, Any]], expected: object, step: int, first: int = 0
    ) -> int:
        """Do the work again and again, cancelled one `step` later each time, and once more some turns after that.

        `first` turns are let pass before; with each `first` below `step` in turn, no turn is left out.

        It gives what is expected or ends cancelled. Stops when it was over before its turn came, three times in a row:
        how many turns it takes varies a little. Returns how often it was cancelled.
        """
        turn, num_cancelled, in_time = 2 + first, 0, 0
        while in_time < 3:
            if await self._is_cancelled(work(), expected, (turn, turn + _LATER[turn % 3])):
                num_cancelled, in_time = num_cancelled + 1, 0
            else:
                in_time += 1
            turn += step
        return num_cancelled

    async def _is_cancelled(self, work: Coroutine[Any, Any, Any], expected: object, at: tuple[int, ...]) -> bool:
        self._count, self._at = 0, at
        self._task = asyncio.create_task(work)
        try:
            assert await self._task == expected
        except asyncio.CancelledError:
            return True
        finally:
            self._task = None
        return False

    def _counted(self, *args: Any, **kwargs: Any) -> asyncio.Handle:
        self._count += 1
        if self._task is not None and self._count in self._at:
            self._call_soon(self._task.cancel)
        return self._call_soon(*args, **kwargs)
