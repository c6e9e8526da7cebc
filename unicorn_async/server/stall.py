"""Who does not take what is written to it is cut off, whoever wrote it and whether or not that waits."""

from __future__ import annotations

import asyncio
import logging
from contextvars import copy_context

logger = logging.getLogger(__name__)

_MIN_TAKEN = 16 << 10  # bytes in each period, a few hundred a second


class Unread:
    """What clients have not taken of all connections that are watched; of too much the oldest is dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sizes: dict[asyncio.Transport, int] = {}
        self._context = copy_context()  # of no request: who has to go is not who writes

    def add(self, transport: asyncio.Transport, size: int) -> None:
        """Count the bytes that wait in a connection."""
        self._sizes[transport] = size
        while sum(self._sizes.values()) > self._limit:
            oldest = next(iter(self._sizes))
            peer, size = oldest.get_extra_info("peername"), self._sizes.pop(oldest)
            text = "client %s is cut off: %d bytes wait for it, too much beside others'"
            self._context.copy().run(logger.warning, text, peer, size)
            oldest.abort()

    def remove(self, transport: asyncio.Transport) -> None:
        """Count them no longer; harmless for one that is not counted."""
        self._sizes.pop(transport, None)


class StallWatch:
    """Drops a connection whose peer has taken less than 16 KiB of a full write buffer in a period.

    A protocol tells it when its transport's buffer is too full, and when it no longer is.
    """

    def __init__(self, timeout_s: float, unread: Unread) -> None:
        self._timeout_s = timeout_s
        self._unread = unread
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Watch from now on."""
        self.end()
        loop, size = asyncio.get_running_loop(), transport.get_write_buffer_size()
        self._transport = transport
        self._timer = loop.call_later(self._timeout_s, self._check, transport, size)
        self._unread.add(transport, size)

    def end(self) -> None:
        """Watch no longer; a second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._unread.remove(self._transport)
            self._transport = None

    def _check(self, transport: asyncio.Transport, earlier: int) -> None:
        left = transport.get_write_buffer_size()
        if left > earlier - _MIN_TAKEN:
            peer = transport.get_extra_info("peername")
            logger.warning("client %s took nothing for %g s and is cut off: %d bytes wait", peer, self._timeout_s, left)
            transport.abort()
        else:
            self.begin(transport)
