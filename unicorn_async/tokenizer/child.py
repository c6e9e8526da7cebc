"""A process of this package's own, that this one starts and talks to by a socket."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from multiprocessing.connection import Connection

from unicorn_async.errors import TokenizerLostError

# The module search path comes along: what this process imported has to be what the other one imports.
_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from unicorn_async.tokenizer.{module} import main; main(int(sys.argv[2]))"
)


class Child:
    """A process that runs `main` of a module of this room, until it is killed; it sees when this process ends.

    `name` is what errors call it.

    Raises:
        TokenizerLostError: it can't be started.
    """

    def __init__(self, module: str, name: str) -> None:
        self._name = name
        self.connection, theirs = connected(name)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _MAIN.format(module=module), json.dumps(sys.path), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    # A Ctrl-C at the terminal is for this process, which then ends the other one; and Linux shares out
                    # the CPU by sessions, so that reading threads do not hold up what a first prompt waits for.
                    start_new_session=True,
                )
            except OSError as exc:
                self.connection.close()
                raise TokenizerLostError(f"{name} can't be started: {exc.strerror}") from exc

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def send_descriptor(self, descriptor: int) -> None:
        """Send an open file, with a byte of zero.

        Raises:
            OSError: it can't be sent.
        """
        ours = socket.socket(fileno=self.connection.fileno())  # no copy of it, for which there may be no room
        try:
            socket.send_fds(ours, [b"\0"], [descriptor])
        finally:
            ours.detach()

    def kill(self) -> int:
        """End the process, and those that it made, if it has not ended; return its status, or minus its signal."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # it leads a session of its own
        return self._process.wait()

    def wait(self) -> str:
        """Wait for its end, and say what it was."""
        status = self._process.wait()
        return f"signal {-status}" if status < 0 else f"exit status {status}"


def connected(name: str, seconds: float | None = None) -> tuple[Connection, socket.socket]:
    """Return both ends of a new socket: ours, which waits for a message no longer than `seconds`, and theirs.

    Raises:
        TokenizerLostError: there can't be one; `name` is what it was for.
    """
    try:
        ours, theirs = socket.socketpair()
    except OSError as exc:
        raise TokenizerLostError(f"{name} can't be reached: {exc.strerror}") from exc
    if seconds is not None:
        _limit(ours, seconds)
    return Connection(ours.detach()), theirs


def limit_waits(connection: Connection, seconds: float) -> None:
    """Have a connection wait for the other end no longer: what takes longer is a BlockingIOError.

    Raises:
        OSError: it is closed.
    """
    ours = socket.socket(fileno=connection.fileno())
    try:
        _limit(ours, seconds)
    finally:
        ours.detach()


def _limit(ours: socket.socket, seconds: float) -> None:
    whole = int(seconds)
    limit = struct.pack("ll", whole, int((seconds - whole) * 1e6))
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def shut(connection: Connection) -> None:
    """End what waits for a socket, at either end of it."""
    ours = socket.socket(fileno=connection.fileno())
    try:
        with contextlib.suppress(OSError):  # the other end has gone
            ours.shutdown(socket.SHUT_RDWR)
    finally:
        ours.detach()
