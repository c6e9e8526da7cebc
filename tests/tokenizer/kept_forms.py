"""What is kept of a tokenizer, as it is written and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.tokenizer.kept import KeptTokenizer, kept_form, read_kept
from unicorn_async.tokenizer.pieces import PieceTable

from . import builders

if TYPE_CHECKING:
    from unicorn_async.tokenizer import Tokenizer


def table_of(tokenizer: Tokenizer) -> PieceTable:
    table = PieceTable()
    for token_id in range(tokenizer.facts.num_ids):
        table.append(tokenizer.pieces[token_id])
    return table


def form_of(tokenizer: Tokenizer) -> bytes | None:
    return kept_form(builders.backend(tokenizer), tokenizer.facts, table_of(tokenizer), tokenizer.pieces.strip)


def kept_of(tokenizer: Tokenizer) -> KeptTokenizer:
    form = form_of(tokenizer)
    assert form is not None
    kept = read_kept(memoryview(form))
    assert kept is not None
    return kept
