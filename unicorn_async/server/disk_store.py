"""Finished responses on disk: in a SQLite database, where each is whole or not at all, however the process ends."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from unicorn_async.background import run_to_end
from unicorn_async.daemon_threads import DaemonThreads
from unicorn_async.errors import CacheError, ConfigError
from unicorn_async.server.store import StoredResponse
from unicorn_async.server.store_lock import drop_lock, lock_again, lock_file, lock_store
from unicorn_async.tokenizer import ChatMessage, ToolCall

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

_log = logging.getLogger(__name__)

_VERSION = 2
_OLDER = 1  # without owners
_SCHEMA = """
CREATE TABLE responses (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, body TEXT NOT NULL, messages TEXT NOT NULL, num_inputs INTEGER,
    owner TEXT NOT NULL DEFAULT ''
)
"""
_COLUMNS = ("number", "id", "body", "messages", "num_inputs", "owner")
LOCK_WAIT_S = 2.0  # for another program that has the file's lock; then nothing waits for it until it is free
T = TypeVar("T")


class DiskStore:
    """Keeps the newest responses, a number of them; a thread of its own waits for the disk. `close` it at the end.

    Raises:
        ConfigError: the file can't be opened or made, or is not such a database.
    """

    def __init__(self, path: Path, max_entries: int) -> None:
        self._path = path
        self._max_entries = max_entries
        self.num_lost = 0  # files that were deleted or replaced while they were open
        self._is_locked = False  # by another program, for longer than is waited
        self._has_deleted_text = False  # in the log
        self._threads = DaemonThreads("unicorn-store", 1, self._leave)
        self._is_closed = False
        with contextlib.ExitStack() as opened:
            try:
                self._lock, is_made = lock_store(path)
                opened.callback(os.close, self._lock)
                if is_made:
                    opened.callback(drop_lock, path)
                self._open()
                opened.callback(self._opened.close)
                self._threads.start()
            except (OSError, sqlite3.Error, CacheError) as exc:
                reason = exc.strerror if isinstance(exc, OSError) else exc
                raise ConfigError(f"{path}: responses can't be kept there: {reason}") from exc
            opened.pop_all()

    @property
    def busy_s(self) -> float:
        """For how many seconds the disk has been at what it does now; 0 if nothing is asked of it."""
        return self._threads.busy_s

    def get(self, response_id: str) -> asyncio.Future[StoredResponse | None]:
        """Return a response, None if it is not there.

        Raises:
            sqlite3.Error: the disk does not give it; it is the future's, as the next ones are.
            ValueError, TypeError: it is damaged.
            RuntimeError: the store is closed; not the future's.
        """
        return self._begin("reading", partial(self._get, response_id))

    def put(self, entry: StoredResponse) -> asyncio.Future[None]:
        """Keep a response, before all that is asked for later; it is on its way to the disk when the future is done.

        Raises:
            sqlite3.Error: the disk does not take it; it is the future's.
            RuntimeError: the store is closed.
        """
        return self._begin("writing", partial(self._put, entry))

    def remove(self, response_id: str) -> asyncio.Future[None]:
        """Forget a response.

        Raises:
            sqlite3.Error: the disk does not take that; it is the future's.
            RuntimeError: the store is closed.
        """
        return self._begin("removing", partial(self._remove, response_id))

    async def close(self, patience_s: float) -> list[str]:
        """Close the file behind what is under way, and leave out what was not begun.

        Returns what the disk has not done in that time: it keeps the file, and its lock, until it has.
        """
        self._is_closed = True
        return await run_to_end(partial(self._threads.close, patience_s))

    def _begin(self, what: str, work: Callable[[], T]) -> asyncio.Future[T]:
        if self._is_closed:
            raise RuntimeError(f"{self._path} is closed")
        return self._threads.begin(what, work)

    def _leave(self) -> None:
        try:
            self._opened.close()
        except sqlite3.Error as exc:
            _log.error("%s can't be closed in order: %s", self._path, exc)
        finally:
            os.close(self._lock)

    def _open(self) -> None:
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, lock_file(self._path))
            self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            opened.callback(self._connection.close)
            self._set_up()
            self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # with which its log is there
            self._file, self._journal = _file_at(self._path), _file_at(self._beside("-wal"))
            self._opened = opened.pop_all()

    def _beside(self, end: str) -> Path:
        return self._path.with_name(self._path.name + end)

    def _open_what_is_there(self) -> None:
        """Open the file anew where it is another one, or none, than that which is open: nobody would find the old one.

        Raises:
            sqlite3.Error: the one that is there can't be used.
        """
        if self._file is not None and _file_at(self._path) == self._file:
            return
        if self._file is not None:
            self.num_lost += 1
            _log.error("%s was deleted or replaced while it was in use: what was kept in it is lost", self._path)
        self._file = None  # until one is open
        self._opened.close()
        if self._journal is not None and _file_at(self._beside("-wal")) == self._journal:
            for end in ("-wal", "-shm"):  # of the old file: SQLite would write it into the one that is there
                self._beside(end).unlink(missing_ok=True)
        self._journal = None
        try:
            self._lock = lock_again(self._path, self._lock)
            self._open()
        except (OSError, ConfigError) as exc:
            raise sqlite3.OperationalError("the store's file was deleted or replaced, and can't be made again") from exc
        _log.warning("%s is open again", self._path)

    def _set_up(self) -> None:
        connection = self._connection
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        columns = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info('responses')")]
        (num_objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        expected = {_OLDER: list(_COLUMNS[:-1]), _VERSION: list(_COLUMNS)}
        if (version in expected and columns != expected[version]) or (version == 0 and num_objects):
            raise ConfigError(f"{self._path}: a database of another program; responses are not kept there")
        if version not in (0, _OLDER, _VERSION):
            raise ConfigError(f"{self._path}: a store of version {version}, expected {_VERSION}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is not to be read there any more
        if version == 0:
            connection.executescript(f"BEGIN; {_SCHEMA}; PRAGMA user_version = {_VERSION}; COMMIT")
        elif version == _OLDER:
            column = "ALTER TABLE responses ADD COLUMN owner TEXT NOT NULL DEFAULT ''"
            connection.executescript(f"BEGIN; {column}; PRAGMA user_version = {_VERSION}; COMMIT")

    def _get(self, response_id: str) -> StoredResponse | None:
        self._open_what_is_there()
        query = "SELECT body, messages, num_inputs, owner FROM responses WHERE id = ?"
        row = self._connection.execute(query, (response_id,)).fetchone()
        if row is None:
            return None
        body, messages, num_inputs, owner = row
        conversation = tuple(_message(*parts) for parts in json.loads(messages))
        return StoredResponse(response_id, body, conversation, num_inputs, owner)

    def _put(self, entry: StoredResponse) -> None:
        self._open_what_is_there()
        messages = json.dumps([_parts(message) for message in entry.messages])
        query = "INSERT OR REPLACE INTO responses (id, body, messages, num_inputs, owner) VALUES (?, ?, ?, ?, ?)"
        with self._writing(), self._connection:
            self._connection.execute("BEGIN")
            done = self._connection.execute(query, (entry.id, entry.body, messages, entry.num_inputs, entry.owner))
            oldest = (done.lastrowid or 0) - self._max_entries
            self._connection.execute("DELETE FROM responses WHERE number <= ?", (oldest,))
        if self._has_deleted_text:
            self._empty_log()

    def _remove(self, response_id: str) -> None:
        self._open_what_is_there()
        with self._writing():
            self._connection.execute("DELETE FROM responses WHERE id = ?", (response_id,))
        self._has_deleted_text = True
        self._empty_log()

    def _empty_log(self) -> None:
        """Have the log lose the text of what was deleted; another program that reads holds that up, and is not waited
        for: the next write tries again."""
        self._connection.execute("PRAGMA busy_timeout = 0")
        try:
            (is_busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as exc:
            _log.warning("%s: what was deleted is in its log until the next write: %s", self._path, exc)
        else:
            self._has_deleted_text = bool(is_busy)
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {round(1000 * LOCK_WAIT_S)}")

    @contextlib.contextmanager
    def _writing(self) -> Generator[None]:
        """Wait for the lock, but not once more for each that follows: who reads would wait for all of them."""
        self._connection.execute(f"PRAGMA busy_timeout = {0 if self._is_locked else round(1000 * LOCK_WAIT_S)}")
        try:
            yield
        except sqlite3.OperationalError as exc:
            self._is_locked = exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            raise
        self._is_locked = False


def _file_at(path: Path) -> tuple[int, int] | None:
    """Which file is there, None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _parts(message: ChatMessage) -> list[object]:
    """Role and content; behind them calls, the call that is answered, and thoughts, where there are some."""
    parts: list[object] = [message.role, message.content]
    if message.tool_calls or message.tool_call_id is not None:
        parts += [[(call.id, call.name, call.arguments) for call in message.tool_calls], message.tool_call_id]
        parts += [message.thoughts] if message.thoughts else []
    return parts


def _message(
    role: str,
    content: str,
    calls: Sequence[tuple[str, str, str]] = (),
    call_id: str | None = None,
    thoughts: str = "",
) -> ChatMessage:
    return ChatMessage(role, content, tuple(ToolCall(*call) for call in calls), call_id, thoughts)
