"""What has come of a websocket's message that nobody has taken yet: it counts as its client's, and has a deadline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.server.ledger import Lease


class Unfinished:
    """The bytes of one connection's message, from its first part on. `end` it with the connection."""

    def __init__(self, timeout_s: float, on_late: Callable[[], None]) -> None:
        """`on_late` is called when a message has not come whole within the time."""
        self._timeout_s = timeout_s
        self._on_late = on_late
        self._lease: Lease | None = None
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def count_in(self, lease: Lease) -> None:
        """Have the bytes count there, and no longer where they did.

        Raises:
            ApiError: 429, it has no room for them.
        """
        lease.add(self._size)
        if self._lease is not None:
            self._lease.release()
        self._lease = lease

    def resize(self, size: int) -> None:
        """Note how much there is now.

        Raises:
            ApiError: 429, that is more than its client may have; it stays as it was.
        """
        if self._lease is not None:
            self._lease.add(size - self._size)
        self._size = size

    def begin_wait(self) -> None:
        """Have the deadline run for a message of which a part is there, unless it does."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._on_late)

    def end_wait(self) -> None:
        """Note that the message is whole; a second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Give everything back; a second call does nothing."""
        self.end_wait()
        self._size = 0
        if self._lease is not None:
            self._lease.release()
            self._lease = None
