"""The websockets that have shown no key yet: they get a small part of the places, whoever opens how many."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

logger = logging.getLogger(__name__)

SHARE = 8  # one in so many of all connections
_TOLD_EVERY_S = 60.0


class Strangers:
    """Those that wait for their client's key; of too many the longest waiting one goes of who has most of them.

    So an address that opens very many has none but its own put out, and a page, which sends its key at once, comes to
    its turn.
    """

    def __init__(self, max_connections: int) -> None:
        self._limit = max(1, max_connections // SHARE)
        self._waiting: dict[asyncio.Timeout, str] = {}  # in the order of their coming: whose each is
        self._num_untold = 0
        self._told_s: float | None = None

    @asynccontextmanager
    async def waiting(self, name: str, timeout_s: float) -> AsyncIterator[None]:
        """Be one of them; `name` is of the address.

        Raises:
            ApiError: 401, its time is up; 503, it had to go before that.
        """
        has_room = True
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                self._waiting[deadline] = name
                try:
                    self._put_out()
                    yield
                finally:
                    has_room = self._waiting.pop(deadline, None) is not None
        except TimeoutError:
            if has_room:
                raise ApiError("no API key came", status=401, code="missing_api_key") from None
            message = f"more than {self._limit} connections wait for their API keys"
            raise ApiError(message, status=503, code="too_many_connections") from None

    def _put_out(self) -> None:
        while len(self._waiting) > self._limit:
            name, _ = Counter(self._waiting.values()).most_common(1)[0]
            oldest = next(deadline for deadline, whose in self._waiting.items() if whose == name)
            del self._waiting[oldest]
            self._tell(name)
            if not oldest.expired():
                oldest.reschedule(asyncio.get_running_loop().time())

    def _tell(self, name: str) -> None:
        """Log it, but not as often as a stranger likes."""
        self._num_untold += 1
        now = asyncio.get_running_loop().time()
        if self._told_s is not None and now < self._told_s + _TOLD_EVERY_S:
            return
        logger.warning(
            "more than %d websockets wait for their API keys: %d had to go, the last one of client %s",
            self._limit, self._num_untold, name,
        )  # fmt: skip
        self._num_untold, self._told_s = 0, now
