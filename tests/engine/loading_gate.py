"""Holds back what a loader reads, until a test lets it go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from unicorn_async.loader.reader import FileReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import pytest

    from unicorn_async.engine.engine import Engine
    from unicorn_async.loader.reader import Read

HELD_FROM = 500_000  # bytes: enough for some of the layers, not for all
READS = ("read", "read_around")  # each takes a file's index, the offset of its first byte, and more


class LoadingGate:
    """Reads that begin at or behind the byte `held_from` of a file wait for `open`."""

    def __init__(self, patch: pytest.MonkeyPatch, held_from: int) -> None:
        self._held_from = held_from
        self._opened = asyncio.Event()
        for name in READS:
            patch.setattr(FileReader, name, self._holding(getattr(FileReader, name)))
        patch.setattr(FileReader, "read_all", self._holding_all(FileReader.read_all))

    def open(self) -> None:
        """Let everything pass."""
        self._opened.set()

    def _holding(self, read: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def held_read(reader: FileReader, file: int, offset: int, *rest: Any) -> Any:
            if offset >= self._held_from:
                await self._opened.wait()
            return await read(reader, file, offset, *rest)

        return held_read

    def _holding_all(
        self, read_all: Callable[[FileReader, Sequence[Read]], Awaitable[None]]
    ) -> Callable[[FileReader, Sequence[Read]], Awaitable[None]]:
        async def held_read(reader: FileReader, reads: Sequence[Read]) -> None:
            if any(read.offset >= self._held_from for read in reads):
                await self._opened.wait()
            await read_all(reader, reads)

        return held_read


async def some_layers(engine: Engine, at_least: int = 2) -> None:
    """Wait until so many layers are active."""
    async for progress in engine.load_progress():
        if progress.layers_active >= at_least:
            return
