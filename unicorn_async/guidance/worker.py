"""The process that has the vocabulary: it prepares it, and makes copies of itself, each of which follows a grammar.

A grammar is a stranger's program. It can't be interrupted, and may take all memory that there is; so it has a process
that the kernel ends when its time is over, or its memory.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import resource
import select
import signal
import socket
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.errors import GrammarError
from unicorn_async.guidance.answering import Answering
from unicorn_async.guidance.limits import MAX_BYTES
from unicorn_async.guidance.messages import LENGTH_BYTES, UNASKED, Ended, packed

if TYPE_CHECKING:
    from unicorn_async.guidance.matchers import Matchers
    from unicorn_async.guidance.vocabulary import Vocabulary


def main(descriptor: int) -> None:
    """Serve the process at the other end of a socket until it closes it, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # by which the kernel ends a copy, whatever it is at
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    with socket.socket(fileno=descriptor) as connection:
        length = int.from_bytes(connection.recv(LENGTH_BYTES, socket.MSG_WAITALL), "little")
        vocabulary: Vocabulary = pickle.loads(connection.recv(length, socket.MSG_WAITALL))
        from unicorn_async.guidance.matchers import Matchers

        matchers: Matchers | GrammarError
        try:
            matchers = Matchers(vocabulary)
        except GrammarError as exc:
            matchers = exc
        gc.collect()
        gc.freeze()
        Copies(connection, matchers).serve()


class _Copy(NamedTuple):
    pid: int
    watch: int  # a descriptor that says when it has ended
    end: int  # of the socket that it serves


class Copies:
    """For every socket that comes, a copy of this process serves it, and ends when nobody is at its other end.

    How a copy ended is told there. In place of `matchers` there may be the reason why nothing can be matched.
    """

    def __init__(self, connection: socket.socket, matchers: Matchers | GrammarError) -> None:
        self._connection = connection
        self._matchers = matchers
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._copies: dict[int, _Copy] = {}  # by both descriptors
        self._told: set[int] = set()  # ends at whose other end it is told how their copies ended

    def serve(self) -> None:
        """Go on until the connection ends; then all copies end, too."""
        while True:
            for descriptor, _ in self._poll.poll():
                copy = self._copies.get(descriptor)
                if descriptor == self._connection.fileno():
                    self._take()
                elif descriptor in self._told:
                    self._poll.unregister(descriptor)
                    self._told.remove(descriptor)
                    os.close(descriptor)
                elif copy is None:
                    continue  # it was told in the same breath as its end
                elif descriptor == copy.watch:
                    self._ended(copy)
                else:  # nobody is there any more
                    self._poll.unregister(copy.end)
                    os.kill(copy.pid, signal.SIGKILL)

    def _take(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._connection, 1, 1)
        if not data:
            os.killpg(0, signal.SIGKILL)  # this process leads a session of its own
        for descriptor in descriptors:
            self._make(descriptor)

    def _make(self, descriptor: int) -> None:
        try:
            pid = os.fork()
        except OSError:  # as many processes as there may be: the other end sees that nobody serves it
            os.close(descriptor)
            return
        if not pid:
            self._be_copy(descriptor)
        try:
            watch = os.pidfd_open(pid)
        except OSError:  # as many files as there may be
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(descriptor)
            return
        copy = _Copy(pid, watch, descriptor)
        self._copies[copy.watch] = self._copies[copy.end] = copy
        self._poll.register(copy.watch, select.POLLIN)
        self._poll.register(copy.end, 0)  # its closing is told all the same

    def _be_copy(self, descriptor: int) -> None:
        try:  # no error may lead out of here: the copy would go on as this process
            for other in (*self._copies, *self._told):
                os.close(other)
            self._connection.close()
            with open("/proc/self/statm") as file:
                most = int(file.read().split()[0]) * resource.getpagesize() + MAX_BYTES
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with socket.socket(fileno=descriptor) as connection:
                Answering(connection, self._matchers).serve()
        finally:
            os._exit(0)

    def _ended(self, copy: _Copy) -> None:
        _, status = os.waitpid(copy.pid, 0)
        self._poll.unregister(copy.watch)
        del self._copies[copy.watch], self._copies[copy.end]
        os.close(copy.watch)
        with socket.socket(fileno=copy.end) as end:
            try:
                end.send(packed(UNASKED, Ended(os.waitstatus_to_exitcode(status))), socket.MSG_DONTWAIT)
            except OSError:  # nobody is there any more, or reads
                with contextlib.suppress(KeyError):
                    self._poll.unregister(copy.end)
            else:  # who asks something before it reads this would find a broken connection, and nothing to read
                self._told.add(end.detach())
