"""The process that follows grammars, as the engine's event loop sees it."""

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

from unicorn_async.errors import GrammarError, GrammarLostError
from unicorn_async.guidance.messages import LENGTH_BYTES, packed

if TYPE_CHECKING:
    from unicorn_async.guidance.messages import Reply, Request
    from unicorn_async.guidance.vocabulary import Vocabulary

_log = logging.getLogger(__name__)

# The module search path comes along: what this process imported has to be what the other one imports.
_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from unicorn_async.guidance.worker import main; main(int(sys.argv[2]))"
)


class GuidanceProcess:
    """Asks the process, which `start` has started; close it at the end. It belongs to one event loop.

    To prepare a large vocabulary takes it seconds, during which requests wait. It ends with this process, however that
    ends. When it ends by itself, whoever waits gets an error, and `has_ended` is set.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.has_ended = False
        self._process = process
        self._writer = writer
        self._replies: dict[int, asyncio.Future[bytes | None]] = {}
        self._last_number = 0
        self._reading = asyncio.create_task(self._read(reader), name="grammars")

    @classmethod
    async def start(cls, vocabulary: Vocabulary) -> GuidanceProcess:
        """Start the process.

        Raises:
            GrammarLostError: it can't be started.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.to_thread(_started, theirs)
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        body = pickle.dumps(vocabulary, pickle.HIGHEST_PROTOCOL)
        writer.write(len(body).to_bytes(LENGTH_BYTES, "little") + body)
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def ask(self, request: Request) -> asyncio.Future[bytes | None]:
        """Send a request; the future has its answer, or GrammarError, or GrammarLostError where the process ended."""
        reply: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        if self.has_ended:
            _fail(reply)
            return reply
        self._last_number += 1
        self._replies[self._last_number] = reply
        self._writer.write(packed(self._last_number, request))
        return reply

    async def close(self) -> None:
        """End the process; whoever waits for an answer gets an error."""
        self._reading.cancel()
        await asyncio.wait((self._reading,))
        self._end()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
                number, reply = pickle.loads(await reader.readexactly(length))
                self._settle(number, reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it is told below
        except Exception:
            _log.exception("what the process that follows grammars says is not understood")
        finally:
            self._end()
        _log.warning("the process that follows grammars has ended (%s)", self._process.returncode)

    def _settle(self, number: int, reply: Reply) -> None:
        waiting = self._replies.pop(number)
        if waiting.done():  # whoever asked has gone
            return
        if isinstance(reply, GrammarError):
            waiting.set_exception(reply)
        else:
            waiting.set_result(reply)

    def _end(self) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        self._writer.close()
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # it leads a session of its own
        self._process.wait()
        for reply in self._replies.values():
            if not reply.done():
                _fail(reply)
        self._replies.clear()


def _fail(reply: asyncio.Future[bytes | None]) -> None:
    reply.set_exception(GrammarLostError("the process that follows grammars has ended"))
    reply.exception()  # seen: not everybody waits


def _started(theirs: socket.socket) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _MAIN, json.dumps(sys.path), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # a Ctrl-C at the terminal is for this process, which then ends the other one
        )
    except OSError as exc:
        raise GrammarLostError(f"the process that follows grammars can't be started: {exc.strerror}") from exc
