"""The server's finished responses: in memory, and where it is wanted on disk beside that."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.server.disk_store import DiskStore
    from unicorn_async.server.options import ServerOptions
    from unicorn_async.server.store import ResponseStore, StoredResponse

logger = logging.getLogger(__name__)


class Archive:
    """Keeps responses on disk beside those in `memory`, from which they are read; without a file it has memory alone.

    Raises:
        ConfigError: they can't be kept in that file.
    """

    def __init__(self, memory: ResponseStore, options: ServerOptions) -> None:
        self._memory = memory
        self._disk = _disk_store(options)

    async def recall(self, response_id: str) -> None:
        """Take a response from the disk that is not in memory any more."""
        if self._disk is not None and self._memory.get(response_id) is None:
            entry = await self._disk.get(response_id)
            if entry is not None:
                self._memory.put(entry)

    async def keep(self, entry: StoredResponse) -> None:
        """Keep a response on disk; that it does not go is logged."""
        if self._disk is None:
            return
        try:
            await self._disk.put(entry)
        except Exception as exc:  # a full disk ends no answer
            logger.error("response %s is kept in memory alone: %s", entry.id, exc)

    async def remove(self, response_id: str) -> None:
        """Forget a response."""
        self._memory.remove(response_id)
        if self._disk is not None:
            await self._disk.remove(response_id)

    async def close(self) -> None:
        """Write what waits."""
        if self._disk is not None:
            await self._disk.close()


def _disk_store(options: ServerOptions) -> DiskStore | None:
    if options.store_file is None:
        return None
    from unicorn_async.server.disk_store import DiskStore  # with SQLite, which few want

    return DiskStore(options.store_file, options.max_stored_on_disk)
