"""A process that follows one grammar: masks are computed beside each other."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, BinaryIO

from unicorn_async.errors import GrammarError
from unicorn_async.guidance.messages import LENGTH_BYTES, UNASKED, Advance, Begin, Compile, End, Masks, packed

if TYPE_CHECKING:
    import socket

    from unicorn_async.grammar import Grammar
    from unicorn_async.guidance.matchers import Matchers
    from unicorn_async.guidance.messages import Reply, Request

_MOST_THREADS = 4
_NICENESS = 10


class Answering:
    """Compiles a grammar, then answers requests in any order; those for the same answer come one at a time.

    In place of `matchers` there may be the reason why nothing can be matched.
    """

    def __init__(self, connection: socket.socket, matchers: Matchers | GrammarError) -> None:
        self._connection = connection
        self._matchers = matchers
        self._grammar: Grammar | None = None
        self._sending = threading.Lock()

    def serve(self) -> None:
        """Go on until the connection ends."""
        self._send(UNASKED, None)  # it is there
        with self._connection.makefile("rb") as reader:
            if body := _message(reader):
                self._begin(*pickle.loads(body))
            threads = min(_MOST_THREADS, os.cpu_count() or 1)
            with ThreadPoolExecutor(threads) as masks:
                while body := _message(reader):
                    masks.submit(self._answer, *pickle.loads(body))

    def _begin(self, number: int, request: Compile) -> None:
        signal.setitimer(signal.ITIMER_PROF, request.seconds)
        compiling = threading.Thread(target=self._answer, args=(number, request))  # a thread is nice by itself
        compiling.start()
        compiling.join()

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
        self._send(number, reply)

    def _send(self, number: int, reply: Reply) -> None:
        message = packed(number, reply)
        with self._sending:
            try:
                self._connection.sendall(message)
            except OSError:
                os._exit(0)  # nobody is there any more

    def _answered(self, request: Request) -> Masks | bytes | int | None:
        if isinstance(self._matchers, GrammarError):
            raise self._matchers
        match request:
            case Compile(grammar, _, is_nice):
                return self._compiled(self._matchers, grammar, is_nice=is_nice)
            case Begin(key):
                assert self._grammar is not None, "it was compiled before"
                return self._matchers.open(key, self._grammar)
            case Advance(key, token_ids, proposed, most):
                return self._matchers.advance(key, token_ids, proposed, most)
            case End(key):
                self._matchers.close(key)
        return None

    def _compiled(self, matchers: Matchers, grammar: Grammar, *, is_nice: bool) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if is_nice:
            os.nice(_NICENESS)
        matchers.compile(grammar)
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._grammar = grammar
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10


def _message(reader: BinaryIO) -> bytes:
    return reader.read(int.from_bytes(reader.read(LENGTH_BYTES), "little"))
