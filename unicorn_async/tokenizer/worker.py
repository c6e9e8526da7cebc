"""The process that holds a large vocabulary: makes the tokenizer and answers what needs it, one request at a time.

The library holds Python's global lock for all of the second that a large vocabulary takes. In a process of its own, it
holds up nothing else.
"""

from __future__ import annotations

import contextlib
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from unicorn_async.errors import UnicornError
from unicorn_async.tokenizer.pieces import PieceTable
from unicorn_async.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

Source: TypeAlias = "Path | Mapping[str, object]"
"""A model's directory, or the metadata of a GGUF file."""

_STEP = 4096  # tokens that are put into the table while nobody waits, about 10 ms


def main(descriptor: int) -> None:
    """Serve the process at the other end of a socket until it closes it, or is gone."""
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, ConnectionError):
        try:
            tokenizer = make_tokenizer(connection.recv())
        except UnicornError as exc:
            connection.send(exc)
            return
        connection.send((tokenizer.facts, tokenizer.pieces.strip))
        _serve(connection, tokenizer)


def make_tokenizer(source: Source) -> Tokenizer:
    """Make a model's tokenizer in this process.

    Raises:
        TokenizerError: it can't be used.
    """
    return Tokenizer.load(source) if isinstance(source, Path) else Tokenizer.from_gguf(source)


def _serve(connection: Connection, tokenizer: Tokenizer) -> None:
    """Answer (text, with_control) with ids or an error, and an id with its bytes, or with the table once it is made."""
    table, num_ids = PieceTable(), tokenizer.facts.num_ids
    while True:
        while len(table) < num_ids and not connection.poll():
            for token_id in range(len(table), min(len(table) + _STEP, num_ids)):
                table.append(tokenizer.pieces[token_id])
        request = connection.recv()
        if isinstance(request, int):
            connection.send(tokenizer.pieces[request] if len(table) < num_ids else table)
            continue
        text, with_control = request
        try:
            connection.send(tokenizer.encoder.encode(text, with_control=with_control))
        except UnicornError as exc:
            connection.send(exc)
