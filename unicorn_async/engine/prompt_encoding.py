"""Prompts that come as texts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.tokenizer import Tokenizer

_MOST = 2  # at once, in threads that others need, too


class PromptEncoding:
    """Makes token ids of texts, for one event loop, which goes on meanwhile."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_MOST)

    async def ids(self, tokenizer: Tokenizer, text: str, max_context: int) -> list[int]:
        """Return a text's ids, for which a context has to have room; raises as `Tokenizer.encode`."""
        return await tokenizer.encode_soon(lambda its: its.encode(text, max_context=max_context), self._in_thread)

    async def whole_ids(self, tokenizer: Tokenizer, text: str, max_context: int) -> list[int]:
        """Return the ids of a text that nothing follows, its end included; all else as `ids`."""
        most = max_context + 1
        return await tokenizer.encode_soon(
            lambda its: its.encode(text, add_eos=True, max_context=most), self._in_thread
        )

    async def _in_thread(self, work: Callable[[], list[int]]) -> list[int]:
        async with self._turns:
            return await asyncio.to_thread(work)
