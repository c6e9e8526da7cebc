"""Responses to be stored, and a disk that is full."""

from __future__ import annotations

import contextlib
import resource
from typing import TYPE_CHECKING

from unicorn_async.server.store import StoredResponse
from unicorn_async.tokenizer import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

SAID = (ChatMessage("user", "Hi ä"), ChatMessage("assistant", "Hello"))


def entry(name: str, size: int = 0) -> StoredResponse:
    return StoredResponse(name, '{"id": "' + name + '"}' + " " * size, SAID, 1)


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Have no file grow, as where no block is free."""
    earlier = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, earlier[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, earlier)
