"""Holds back what a loader reads, until a test lets it go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from unicorn_async.loader.reader import FileReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

READS = ("read", "read_around")  # each takes a file's index, the offset of its first byte, and more


class LoadingGate:
    """Reads that begin at or behind the byte `held_from` of a file wait for `open`."""

    def __init__(self, patch: pytest.MonkeyPatch, held_from: int) -> None:
        self._held_from = held_from
        self._opened = asyncio.Event()
        for name in READS:
            patch.setattr(FileReader, name, self._holding(getattr(FileReader, name)))

    def open(self) -> None:
        """Let everything pass."""
        self._opened.set()

    def _holding(self, read: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def held_read(reader: FileReader, file: int, offset: int, *rest: Any) -> Any:
            if offset >= self._held_from:
                await self._opened.wait()
            return await read(reader, file, offset, *rest)

        return held_read
