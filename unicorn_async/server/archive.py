"""The server's finished responses: in memory, and where it is wanted on disk beside that."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from unicorn_async.server.disk_store import DiskStore
    from unicorn_async.server.options import ServerOptions
    from unicorn_async.server.store import ResponseStore, StoredResponse

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_UNWRITTEN = 64  # responses on their way to the disk; who has made one more waits for it
DISK_TIMEOUT_S = 10.0  # for what is asked of the disk, and waited for
_SILENCE = f"nothing came within {DISK_TIMEOUT_S:g} s"
END_S = 5.0  # at the end, for each thing that the disk is to do still
MAX_NAMES = 10  # in the log, of responses that the disk has not at the end


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """What became of the responses that were to be kept on disk."""

    on_disk: bool  # whether they are to be
    error: str | None  # why the disk took nothing the last time, None once it does again
    num_unkept: int  # that it did not take
    num_files_lost: int  # deleted or replaced while they were in use

    @property
    def outages(self) -> dict[str, str]:
        """What can't be had now, and why, as an engine's outages are; what is not to be kept goes on meanwhile."""
        return {} if self.error is None else {"store": f"responses can't be kept on disk: {self.error}"}

    def to_json(self) -> dict[str, object]:
        """Return what `/health` says of it."""
        return {
            "on_disk": self.on_disk,
            "error": self.error,
            "unkept": self.num_unkept,
            "files_lost": self.num_files_lost,
        }


class Archive:
    """Keeps responses on disk beside those in `memory`, from which they are read; without a file it has memory alone.

    The disk takes them in their order, behind the answers: `keep` waits for nothing, `room` for a disk that is slower
    than the answers come, `admit` before an answer likewise. A disk that is silent for long is waited for by nobody.

    Raises:
        ConfigError: they can't be kept in that file.
    """

    def __init__(self, memory: ResponseStore, options: ServerOptions) -> None:
        self._memory = memory
        self._disk = _disk_store(options)
        self._unwritten: dict[asyncio.Future[None], str] = {}  # names of responses, in the order of their writing
        self._error: str | None = None
        self._num_unkept = 0
        self._is_silence_told = False  # in the log
        self._is_ending = False
        self._end: asyncio.Future[None] | None = None  # for which those look who wait for the disk
        self._unanswered: set[asyncio.Future[Any]] = set()  # asked of the disk, and by the end not answered
        self._max_names = options.max_stored
        self._unkept: dict[str, None] = {}  # names of the last ones of which the disk has nothing
        self._begun: set[str] = set()  # names of answers under way of which the disk has the beginning
        self._stale: dict[str, StoredResponse] = {}  # the last ones that have ended, and the disk has the beginning

    @property
    def state(self) -> ArchiveState:
        """How the disk does."""
        num_lost = 0 if self._disk is None else self._disk.num_lost
        error = self._error or (_SILENCE if self._is_silent else None)
        return ArchiveState(self._disk is not None, error, self._num_unkept, num_lost)

    @property
    def is_on_disk(self) -> bool:
        """Whether responses are kept on disk."""
        return self._disk is not None

    async def recall(self, response_id: str) -> None:
        """Take a response from the disk that is not in memory any more.

        Raises:
            ApiError: 503, the disk does not give it.
        """
        if self._disk is None or response_id in self._unkept:
            return
        if self._memory.get(response_id) is None:
            if (ended := self._stale.get(response_id)) is not None:
                self._memory.put(ended)
                return
            self._check_answers(f"response {response_id[:100]!r} can't be read")
            try:
                entry = await self._asked(self._disk.get(response_id))
            except _EndedError as exc:
                raise _failed("the server ends") from exc
            except Exception as exc:  # of the disk, or of bytes that are no response
                logger.error("response %s can't be read from disk: %s", response_id[:100], exc)
                raise _failed(f"response {response_id[:100]!r} can't be read") from exc
            if entry is not None:
                self._memory.put(entry)

    def keep(self, entry: StoredResponse, *, is_begun: bool = False) -> None:
        """Send a response to the disk; that it does not go is logged, once until it goes again. `room` has to follow.

        What is asked of the disk after this finds it written. One that `is_begun` comes once more when it has ended:
        where the disk takes the beginning and not the end, it is sent again as soon as the disk takes something.
        """
        if self._disk is None:
            return
        try:
            writing = self._disk.put(entry)
        except RuntimeError as exc:  # it is closed: the server has ended, and this client was slow
            self._note(entry, exc, is_begun=is_begun)
            return
        self._unwritten[writing] = entry.id
        writing.add_done_callback(partial(self._end_writing, entry, is_begun))

    async def admit(self) -> None:
        """Wait until the disk may take one more response, before it is computed; `room` has to follow behind `keep`.

        Raises:
            ApiError: 503, the disk does not answer, or not in time, and has as much to write as is kept for it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISK_TIMEOUT_S):
                while len(self._unwritten) > MAX_UNWRITTEN and not (self._is_silent or self._is_ending):
                    await self.room()
                    await asyncio.sleep(0)  # what has just been written is taken off
        if len(self._unwritten) > MAX_UNWRITTEN and not self._is_ending:
            self._tell_silence()
            why = self.state.error or "too many wait to be written"
            what = f"the disk that responses are kept on takes no more now ({why})"
            way_out = "ask again later, or with store false, which has the answer made and not kept"
            raise ApiError(f"{what}: {way_out}", status=503, code="store_failed")

    async def written(self) -> None:
        """Wait until the disk has, or has not taken, what was sent to it, is silent for long, or the end has come."""
        if self._unwritten:
            await self._done(next(reversed(self._unwritten)))

    async def room(self) -> None:
        """Wait until not too many responses are on their way to the disk, of those that are now, it is silent for
        long, or the end has come."""
        if len(self._unwritten) > MAX_UNWRITTEN:
            await self._done(list(self._unwritten)[-MAX_UNWRITTEN - 1])

    @property
    def _is_silent(self) -> bool:
        """Whether the disk has been at one thing for long."""
        return self._disk is not None and self._disk.busy_s >= DISK_TIMEOUT_S

    async def _done(self, work: asyncio.Future[Any]) -> None:
        while self._disk is not None and not (work.done() or self._is_ending or self._is_silent):
            left_s = max(DISK_TIMEOUT_S - self._disk.busy_s, 0.0)
            await asyncio.wait((work, self._ending()), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    async def _asked(self, asked: asyncio.Future[T]) -> T:
        """Return what the disk says; a TimeoutError where that is nothing for long, and an _EndedError where the end
        comes before it: `close` waits for it then."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DISK_TIMEOUT_S):
                    await self._done(asked)
            if asked.done():
                self._hear()
                return asked.result()
            if self._is_ending:
                self._unanswered.add(asked)
                asked.add_done_callback(self._unanswered.discard)
                raise _EndedError
            self._tell_silence()
            raise TimeoutError(_SILENCE)
        finally:
            if asked not in self._unanswered:
                asked.cancel()

    def _check_answers(self, what: str) -> None:
        """Refuse what needs the disk while it is silent: it would wait for nothing, and so would more and more."""
        if self._is_silent and not self._is_ending:
            self._tell_silence()
            raise _failed(what)

    def _tell_silence(self) -> None:
        if self._is_silent and not self._is_silence_told:
            self._is_silence_told = True
            logger.error("the disk that responses are kept on: %s", _SILENCE)

    def _hear(self) -> None:
        if self._is_silence_told:
            self._is_silence_told = False
            logger.warning("the disk that responses are kept on answers again")

    def _ending(self) -> asyncio.Future[None]:
        """What is done at the end."""
        if self._end is None:
            self._end = asyncio.get_running_loop().create_future()
        if self._is_ending and not self._end.done():
            self._end.set_result(None)
        return self._end

    def _end_writing(self, entry: StoredResponse, is_begun: bool, writing: asyncio.Future[None]) -> None:
        self._unwritten.pop(writing)
        self._hear()
        self._note(entry, writing.exception(), is_begun=is_begun)

    def _note(self, entry: StoredResponse, error: BaseException | None, *, is_begun: bool) -> None:
        """Note what became of a response; a full disk ends no answer."""
        if error is not None:
            if self._error is None:
                logger.error("response %s, and what follows, is kept in memory alone: %s", entry.id, error)
            self._error = str(error)
            self._num_unkept += not (entry.id in self._stale or entry.id in self._unkept)
            if entry.id in self._begun or entry.id in self._stale:
                self._begun.discard(entry.id)
                self._stale[entry.id] = entry
                if len(self._stale) > self._max_names:  # a disk may take every beginning, and no end
                    del self._stale[next(iter(self._stale))]
                return
            self._unkept[entry.id] = None
            if len(self._unkept) > self._max_names:
                del self._unkept[next(iter(self._unkept))]
            return
        self._unkept.pop(entry.id, None)
        self._stale.pop(entry.id, None)
        (self._begun.add if is_begun else self._begun.discard)(entry.id)
        if self._error is not None:
            logger.warning("responses are kept on disk again; %d were not", self._num_unkept)
            self._error = None
            self._send_again()

    def _send_again(self) -> None:
        for entry in list(self._stale.values()):
            self.keep(entry)

    async def remove(self, response_id: str) -> None:
        """Forget a response.

        Raises:
            ApiError: 503, the disk does not forget it; it is still there.
        """
        may_be_there = response_id not in self._unkept or response_id in self._unwritten.values()
        if self._disk is not None and may_be_there:
            self._check_answers(f"response {response_id[:100]!r} can't be removed")
            left = self._stale.pop(response_id, None)  # it could be sent again behind its deletion
            try:
                await self._asked(self._disk.remove(response_id))
                left = None
            except _EndedError as exc:
                left = None
                raise _failed("the server ends") from exc
            except Exception as exc:  # as of `keep`: a disk may fail in any way
                logger.error("response %s can't be removed from disk: %s", response_id[:100], exc)
                raise _failed(f"response {response_id[:100]!r} can't be removed") from exc
            finally:
                if left is not None:
                    self._stale[response_id] = left
            self._begun.discard(response_id)
        self._memory.remove(response_id)

    def end(self) -> None:
        """Have nobody wait for the disk any more; `close` has to follow. A second call does nothing."""
        self._is_ending = True
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    async def close(self) -> None:
        """Write what waits; a disk that hangs is left behind, and what it has not taken is logged."""
        self.end()
        if self._disk is None:
            return
        self._send_again()
        while waiting := [*self._unwritten, *self._unanswered]:
            done, _ = await asyncio.wait(waiting[:1], timeout=END_S)
            if not done:
                break
        if left := await self._disk.close(0.0 if waiting else END_S):
            logger.error("the disk that responses are kept on: %s: no answer within %g s of the end", left[0], END_S)
        if self._unwritten:
            names = list(dict.fromkeys(self._unwritten.values()))
            more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            logger.error("%d responses are not on disk: %s%s", len(names), ", ".join(names[:MAX_NAMES]), more)


class _EndedError(Exception):
    """The server ends before the disk has answered."""


def _failed(what: str) -> ApiError:
    return ApiError(f"{what}: the disk that responses are kept on fails", status=503, code="store_failed")


def _disk_store(options: ServerOptions) -> DiskStore | None:
    if options.store_file is None:
        return None
    from unicorn_async.server.disk_store import DiskStore  # with SQLite, which few want

    return DiskStore(options.store_file, options.max_stored_on_disk)
