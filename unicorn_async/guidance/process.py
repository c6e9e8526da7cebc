"""The process that has the vocabulary, as the engine's event loop sees it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from unicorn_async.errors import GrammarLostError
from unicorn_async.guidance.follower import Follower
from unicorn_async.guidance.limits import ANSWER_S, PREPARE_S
from unicorn_async.guidance.messages import LENGTH_BYTES

if TYPE_CHECKING:
    from unicorn_async.guidance.vocabulary import Vocabulary

_log = logging.getLogger(__name__)

# The module search path comes along: what this process imported has to be what the other one imports.
_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from unicorn_async.guidance.worker import main; main(int(sys.argv[2]))"
)
_LOOK = os.WNOHANG | os.WNOWAIT  # its number, and its copies' group, stay its own until it is closed


class ProcessEndedError(GrammarLostError):
    """The process has ended by itself: another one may do what it did not."""


class GuidanceProcess:
    """Has the process make copies of itself, which follow grammars; close it at the end. It belongs to one event loop.

    To prepare a large vocabulary takes it seconds, during which the first copy waits. It ends with this process,
    however that ends, and its copies with it. One that ended, or does not answer, is of no use any more: `has_ended`.
    One that is found to be stopped when a copy does not answer is ended with all of them: nobody waits for another one.
    """

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process = process
        self._connection = connection
        self._is_closed = False
        self._is_prepared = False

    @classmethod
    async def start(cls, vocabulary: Vocabulary) -> GuidanceProcess:
        """Start the process.

        Raises:
            GrammarLostError: it can't be started.
        """
        process, connection = await asyncio.to_thread(_started)
        made = cls(process, connection)
        body = pickle.dumps(vocabulary, pickle.HIGHEST_PROTOCOL)
        try:
            async with asyncio.timeout(PREPARE_S):
                message = len(body).to_bytes(LENGTH_BYTES, "little") + body
                await asyncio.get_running_loop().sock_sendall(connection, message)
        except (OSError, TimeoutError) as exc:  # TimeoutError is an OSError, too
            await made.close()
            raise _lost("does not take the vocabulary") from exc
        except BaseException:
            await made.close()
            raise
        return made

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether nothing is to be had of it any more."""
        return self._is_closed or os.waitid(os.P_PID, self.pid, _LOOK | os.WEXITED) is not None

    async def copy(self) -> Follower:
        """Have the process make a copy of itself, which has to be told what to compile; it is to be closed.

        Raises:
            ProcessEndedError: it has ended, which may be seen here for the first time.
            GrammarLostError: it does not; it is ended where it does not answer, and stays where there may be no more
                processes, or files.
        """
        seconds = ANSWER_S if self._is_prepared else PREPARE_S
        try:
            reader, writer = await _in_time(self._connection, seconds)
        except TimeoutError as exc:
            await self.close()
            raise _lost(f"did not answer within {seconds:g} s, and is ended") from exc
        except (OSError, EOFError) as exc:
            has_left = isinstance(exc, ConnectionError) or self._has_left()
            if has_left:
                await self.close()
                why = "it has ended"
            else:
                why = (exc.strerror if isinstance(exc, OSError) else None) or "there may be no more processes, or files"
            raise _lost(f"made no copy of itself ({why})", ProcessEndedError if has_left else GrammarLostError) from exc
        self._is_prepared = True
        return Follower(reader, writer, self._end_if_stopped)

    def _end_if_stopped(self) -> None:
        if not self.has_ended and os.waitid(os.P_PID, self.pid, _LOOK | os.WSTOPPED) is not None:
            _log.warning("the process that makes those that follow grammars is stopped; it is ended")
            os.killpg(self.pid, signal.SIGKILL)

    def _has_left(self) -> bool:
        """Whether the process has no end of the connection any more, which is seen before its own end is."""
        if self.has_ended:
            return True
        try:
            return not self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:  # it is there, and has nothing to say
            return False
        except OSError:
            return True

    async def close(self) -> None:
        """End the process and its copies."""
        if self._is_closed:
            return
        self._is_closed = True
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # it leads a session of its own
        await asyncio.to_thread(self._process.wait)


async def _in_time(connection: socket.socket, seconds: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Have a copy made; raises TimeoutError, OSError or EOFError where there is none."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            ours.setblocking(False)
            socket.send_fds(connection, [b"\0"], [theirs.fileno()])
        reader, writer = await asyncio.open_connection(sock=ours)
    except BaseException:
        ours.close()
        raise
    try:
        async with asyncio.timeout(seconds):
            length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
            await reader.readexactly(length)
    except BaseException:
        writer.close()
        raise
    return reader, writer


def _started() -> tuple[subprocess.Popen[bytes], socket.socket]:
    try:
        ours, theirs = socket.socketpair()
    except OSError as exc:
        raise _lost(f"can't be reached: {exc.strerror}") from exc
    ours.setblocking(False)
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, json.dumps(sys.path), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C at the terminal is for this process, which then ends the other one
            )
        except OSError as exc:
            ours.close()
            raise _lost(f"can't be started: {exc.strerror}") from exc
    return process, ours


def _lost(what: str, error: type[GrammarLostError] = GrammarLostError) -> GrammarLostError:
    """Return the error, which is also logged: who asks is told of a fault that is not theirs."""
    message = f"the process that follows grammars {what}"
    _log.warning("%s", message)
    return error(message)
