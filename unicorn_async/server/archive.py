"""The server's finished responses: in memory, and where it is wanted on disk beside that."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from unicorn_async.server.disk_store import DiskStore
    from unicorn_async.server.options import ServerOptions
    from unicorn_async.server.store import ResponseStore, StoredResponse

logger = logging.getLogger(__name__)

MAX_UNWRITTEN = 64  # responses on their way to the disk; who has made one more waits for it


class Archive:
    """Keeps responses on disk beside those in `memory`, from which they are read; without a file it has memory alone.

    The disk takes them in their order, behind the answers: `keep` waits for nothing, `room` for a disk that is slower
    than the answers come.

    Raises:
        ConfigError: they can't be kept in that file.
    """

    def __init__(self, memory: ResponseStore, options: ServerOptions) -> None:
        self._memory = memory
        self._disk = _disk_store(options)
        self._unwritten: deque[asyncio.Future[None]] = deque()  # in the order of their writing
        self._error: str | None = None
        self._num_unkept = 0

    def to_json(self) -> dict[str, object]:
        """Return what `/health` says of it: why the disk took nothing the last time, None once it does again."""
        num_lost = 0 if self._disk is None else self._disk.num_lost
        return {
            "on_disk": self._disk is not None,
            "error": self._error,
            "unkept": self._num_unkept,
            "files_lost": num_lost,
        }

    @property
    def num_unkept(self) -> int:
        """How many responses the disk did not take."""
        return self._num_unkept

    async def recall(self, response_id: str) -> None:
        """Take a response from the disk that is not in memory any more.

        Raises:
            ApiError: 503, the disk does not give it.
        """
        if self._disk is not None and self._memory.get(response_id) is None:
            try:
                entry = await self._disk.get(response_id)
            except Exception as exc:  # of the disk, or of bytes that are no response
                logger.error("response %s can't be read from disk: %s", response_id[:100], exc)
                raise _failed(f"response {response_id[:100]!r} can't be read") from exc
            if entry is not None:
                self._memory.put(entry)

    def keep(self, entry: StoredResponse) -> None:
        """Send a response to the disk; that it does not go is logged, once until it goes again. `room` has to follow.

        What is asked of the disk after this finds it written.
        """
        if self._disk is None:
            return
        try:
            writing = self._disk.put(entry)
        except RuntimeError as exc:  # it is closed: the server has ended, and this client was slow
            self._note(entry.id, exc)
            return
        self._unwritten.append(writing)
        writing.add_done_callback(partial(self._end_writing, entry.id))

    async def room(self) -> None:
        """Wait until not too many responses are on their way to the disk, of those that are now."""
        if len(self._unwritten) > MAX_UNWRITTEN:
            await asyncio.wait((self._unwritten[-MAX_UNWRITTEN - 1],))

    def _end_writing(self, response_id: str, writing: asyncio.Future[None]) -> None:
        self._unwritten.remove(writing)
        self._note(response_id, writing.exception())

    def _note(self, response_id: str, error: BaseException | None) -> None:
        """Note what became of a response; a full disk ends no answer."""
        if error is not None:
            if self._error is None:
                logger.error("response %s, and what follows, is kept in memory alone: %s", response_id, error)
            self._error = str(error)
            self._num_unkept += 1
        elif self._error is not None:
            logger.warning("responses are kept on disk again; %d were not", self._num_unkept)
            self._error = None

    async def remove(self, response_id: str) -> None:
        """Forget a response.

        Raises:
            ApiError: 503, the disk does not forget it; it is still there.
        """
        if self._disk is not None:
            try:
                await self._disk.remove(response_id)
            except Exception as exc:  # as of `keep`: a disk may fail in any way
                logger.error("response %s can't be removed from disk: %s", response_id[:100], exc)
                raise _failed(f"response {response_id[:100]!r} can't be removed") from exc
        self._memory.remove(response_id)

    async def close(self) -> None:
        """Write what waits."""
        if self._disk is not None:
            await self._disk.close()


def _failed(what: str) -> ApiError:
    return ApiError(f"{what}: the disk that responses are kept on fails", status=503, code="store_failed")


def _disk_store(options: ServerOptions) -> DiskStore | None:
    if options.store_file is None:
        return None
    from unicorn_async.server.disk_store import DiskStore  # with SQLite, which few want

    return DiskStore(options.store_file, options.max_stored_on_disk)
