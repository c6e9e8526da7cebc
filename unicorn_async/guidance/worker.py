"""The process that follows grammars: masks are computed beside each other, and beside what is compiled."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, BinaryIO

from unicorn_async.errors import GrammarError
from unicorn_async.guidance.messages import LENGTH_BYTES, Advance, Begin, Check, End, packed

if TYPE_CHECKING:
    from unicorn_async.guidance.matchers import Matchers
    from unicorn_async.guidance.messages import Reply, Request
    from unicorn_async.guidance.vocabulary import Vocabulary

_MOST_THREADS = 4
_ADDRESS_BYTES = 8 << 30  # what a grammar makes the process take ends it, and not the machine


def main(descriptor: int) -> None:
    """Serve the process at the other end of a socket until it closes it, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = _ADDRESS_BYTES if most == resource.RLIM_INFINITY else min(_ADDRESS_BYTES, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rb") as reader:
        vocabulary: Vocabulary = pickle.loads(_message(reader))
        from unicorn_async.guidance.matchers import Matchers

        try:
            Worker(connection, Matchers(vocabulary)).serve(reader)
        except GrammarError as exc:
            Worker(connection, exc).serve(reader)


def _message(reader: BinaryIO) -> bytes:
    return reader.read(int.from_bytes(reader.read(LENGTH_BYTES), "little"))


class Worker:
    """Answers requests, in any order; those for the same answer come one at a time.

    In place of `matchers` there may be the reason why nothing can be matched.
    """

    def __init__(self, connection: socket.socket, matchers: Matchers | GrammarError) -> None:
        self._connection = connection
        self._matchers = matchers
        self._sending = threading.Lock()

    def serve(self, reader: BinaryIO) -> None:
        """Go on until the connection ends."""
        threads = min(_MOST_THREADS, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads) as masks, ThreadPoolExecutor(1) as compiling:
            while body := _message(reader):
                number, request = pickle.loads(body)
                pool = masks if isinstance(request, Advance) else compiling  # an answer ends behind its beginning
                pool.submit(self._answer, number, request)

    def _answer(self, number: int, request: Request) -> None:
        reply: Reply
        try:
            reply = self._answered(request)
        except GrammarError as exc:
            reply = exc
        except MemoryError:
            reply = GrammarError("the grammar takes too much memory")
        except BaseException as exc:  # a panic of Rust is no Exception; who waits would wait for ever
            reply = GrammarError(f"the grammar can't be followed ({type(exc).__name__})")
        message = packed(number, reply)
        with self._sending:
            try:
                self._connection.sendall(message)
            except OSError:
                os._exit(0)  # nobody is there any more

    def _answered(self, request: Request) -> bytes | None:
        if isinstance(self._matchers, GrammarError):
            raise self._matchers
        match request:
            case Check(grammar):
                self._matchers.compile(grammar)
            case Begin(key, grammar):
                return self._matchers.open(key, grammar)
            case Advance(key, token_id):
                return self._matchers.advance(key, token_id)
            case End(key):
                self._matchers.close(key)
        return None
