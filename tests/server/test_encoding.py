"""Conversations become tokens beside everything else."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, cast

from tests.tokenizer.test_kept import HeldProcess, kept_of
from unicorn_async.resources import demo_model_dir
from unicorn_async.server.options import ServerOptions
from unicorn_async.server.service import Service
from unicorn_async.tokenizer import LONG_CHARS, ChatMessage, Tokenizer, excerpt
from unicorn_async.tokenizer.kept_encoder import KeptEncoder

if TYPE_CHECKING:
    import pytest

    from unicorn_async.server.model_host import ModelHost

SHORT = [ChatMessage("user", "Why?")]
LONGER = [ChatMessage("user", "Why is that so? " * 8)]
LONG = [ChatMessage("user", "word " * LONG_CHARS)]


async def test_conversations_that_wait_for_the_whole_vocabulary_hold_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(excerpt, "MAX_TEXT_CHARS", 100)
    local = Tokenizer.load(demo_model_dir())
    held = HeldProcess(local)
    encoder = KeptEncoder(kept_of(local), held)  # type: ignore[arg-type]
    tokenizer = Tokenizer(encoder, local.facts)
    service = Service(cast("ModelHost", None), ServerOptions())
    async with asyncio.timeout(20), service.running():
        waiting = [asyncio.create_task(service.prompts.encode_chat(tokenizer, each)) for each in (LONGER, LONG, LONG)]
        assert await service.prompts.encode_chat(tokenizer, SHORT) == local.encode_chat(SHORT)
        idle = threading.Event()
        service.prompts._tokenizing._long.submit(idle.set)  # type: ignore[union-attr]
        assert await asyncio.to_thread(idle.wait, 10)
        assert not any(task.done() for task in waiting)
        held.made.set()
        found = await asyncio.gather(*waiting)
    assert found == [local.encode_chat(each) for each in (LONGER, LONG, LONG)]
    encoder.close()
