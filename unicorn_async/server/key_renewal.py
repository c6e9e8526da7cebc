"""Reads the file of API keys again while the server runs."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError
from unicorn_async.server.keys import check_keys, read_keys, with_own

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from unicorn_async.server.access import Access
    from unicorn_async.server.keys import ApiKey
    from unicorn_async.server.options import ServerOptions

logger = logging.getLogger(__name__)

_UNUSABLE = "the file of API keys can't be used, and the keys are those from before; the server's log has the reason"


class KeyRenewal:
    """Has what the file says count from the next request on; where it can't be used, the keys stay as they were."""

    def __init__(self, options: ServerOptions, access: Access) -> None:
        self._path = options.api_key_file
        self._own = options.api_key
        self._access = access
        self._wanted = asyncio.Event()
        self._num_renewals = 0
        self._error: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return what `/health` says of it: how often the file was read again, and whether it could not be, last."""
        return {"renewals": self._num_renewals, "error": self._error}

    def ask(self) -> None:
        """Have the file read, once for all that ask before its turn comes."""
        self._wanted.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Read it each time that this is asked for, in the block."""
        task = asyncio.create_task(self._run(), name="renew keys")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if self._path is not None:
                await self._renew(self._path)

    async def _renew(self, path: Path) -> None:
        try:
            keys = await asyncio.to_thread(self._read, path)
        except ConfigError as exc:
            logger.error("the API keys stay as they were: %s", exc)
            self._error = _UNUSABLE
        except Exception:  # of a file system, say: nothing that it does ends this
            logger.exception("the API keys stay as they were")
            self._error = _UNUSABLE
        else:
            self._access.renew(keys)
            self._num_renewals += 1
            self._error = None
            logger.info("there are %d API keys now, by %s", len(keys), path)

    def _read(self, path: Path) -> tuple[ApiKey, ...]:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path}: expected a file, got something else, such as a pipe that never ends")
        keys = with_own(self._own, read_keys(path))
        check_keys(keys)
        return keys
