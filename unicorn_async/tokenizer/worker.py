"""The process that holds a large vocabulary: makes the tokenizer and answers what needs it, one request at a time.

The library holds Python's global lock for all of the second that a large vocabulary takes. In a process of its own, it
holds up nothing else.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
from array import array
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from unicorn_async.errors import UnicornError
from unicorn_async.tokenizer.encoder import BackendEncoder
from unicorn_async.tokenizer.pieces import PieceTable
from unicorn_async.tokenizer.served_end import ending_with
from unicorn_async.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.tokenizer.apart import Call

Source: TypeAlias = "Path | Mapping[str, object]"
"""A model's directory, or the metadata of a GGUF file."""

BESIDE = "beside"  # a request: the end of a socket follows, for a copy of the process to serve
SERVING = b"serving"  # what a copy says at once
_NICENESS = 10
_STEP = 4096  # tokens that are put into the table while nobody waits, about 10 ms


class Work(NamedTuple):
    """What a process is to do: make a tokenizer, and leave a file `keep_in` of it behind for the next start.

    One that nobody waits for works `in_background`.
    """

    source: Source
    keep_in: Path | None = None
    in_background: bool = False


def main(descriptor: int) -> None:
    """Serve the process at the other end of a socket until it closes it, or is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the one that keeps the tokenizer
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, ConnectionError):
        work: Work = connection.recv()
        if work.in_background:
            os.nice(_NICENESS)
        gc.disable()  # hundreds of thousands of strings are made, and all of them stay
        try:
            tokenizer = make_tokenizer(work.source)
        except UnicornError as exc:
            connection.send(exc)
            return
        connection.send((tokenizer.facts, tokenizer.pieces.strip))
        gc.freeze()
        gc.enable()
        _serve(connection, tokenizer, work.keep_in)


def make_tokenizer(source: Source) -> Tokenizer:
    """Make a model's tokenizer in this process.

    Raises:
        TokenizerError: it can't be used.
    """
    return Tokenizer.load(source) if isinstance(source, Path) else Tokenizer.from_gguf(source)


def _keep(connection: Connection, tokenizer: Tokenizer, table: PieceTable, file: Path) -> None:
    """Have a copy of this process write what is kept of the tokenizer: nobody waits for that meanwhile."""
    try:
        if os.fork():
            return
    except OSError:  # as many processes as there may be: the next start makes the whole again
        return
    try:  # no error may lead out of here: the copy would go on as this process
        os.nice(_NICENESS)
        connection.close()
        assert isinstance(tokenizer.encoder, BackendEncoder), "it was made in this process"
        from unicorn_async.tokenizer.kept import kept_form  # NumPy takes as long to import as all else that is here
        from unicorn_async.tokenizer.kept_folder import KeptFolder

        content = kept_form(tokenizer.encoder.backend, tokenizer.facts, table, tokenizer.pieces.strip)
        if content is not None:
            KeptFolder(file.parent).write(file, content)
    finally:
        os._exit(0)


def _serve_beside(connection: Connection, tokenizer: Tokenizer) -> None:
    """Have a copy of this process answer one call at the end of a socket that comes: its memory goes when it ends."""
    ours = socket.socket(fileno=connection.fileno())
    try:
        _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
    finally:
        ours.detach()
    tokenizer.encoder.least_tokens("")  # what copies would find out each for itself
    try:
        is_copy = not os.fork()
    except OSError:  # as many processes as there may be: the other end sees that nobody serves it
        is_copy = False
    if not is_copy:
        os.close(descriptor)
        return
    try:  # no error may lead out of here: the copy would go on as this process
        os.nice(_NICENESS)
        connection.close()
        with Connection(descriptor) as other:
            other.send_bytes(SERVING)
            call: Call = other.recv()
            try:
                with ending_with(other):
                    ids = getattr(tokenizer, call.method)(*call.arguments, **call.named)
                other.send(array("I", ids))
            except UnicornError as exc:
                other.send(exc)
    finally:
        os._exit(0)


def _serve(connection: Connection, tokenizer: Tokenizer, keep_in: Path | None) -> None:
    """Answer (text, with_control) with ids or an error, and an id with its bytes, or with the table once it is made.

    What comes behind `BESIDE` is served by another process. None asks for the table, however long that takes.
    """
    table, num_ids = PieceTable(), tokenizer.facts.num_ids

    def add(most: int) -> None:
        for token_id in range(len(table), min(len(table) + most, num_ids)):
            table.append(tokenizer.pieces[token_id])

    while True:
        while len(table) < num_ids and not connection.poll():
            add(_STEP)
        if keep_in is not None and isinstance(tokenizer.encoder, BackendEncoder) and len(table) == num_ids:
            _keep(connection, tokenizer, table, keep_in)
            keep_in = None
        request = connection.recv()
        if request == BESIDE:
            _serve_beside(connection, tokenizer)
            continue
        if isinstance(request, int):
            connection.send(tokenizer.pieces[request] if len(table) < num_ids else table)
            continue
        if request is None:
            add(num_ids)
            connection.send(table)
            continue
        text, with_control = request
        try:
            connection.send(tokenizer.encoder.encode(text, with_control=with_control))
        except UnicornError as exc:
            connection.send(exc)
