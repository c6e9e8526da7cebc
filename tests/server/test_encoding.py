"""Conversations become tokens beside everything else."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from tests.tokenizer.held_process import HeldProcess
from tests.tokenizer.hostile import HOSTILE
from tests.tokenizer.kept_forms import kept_of
from unicorn_async.errors import PromptTooLongError
from unicorn_async.resources import demo_model_dir
from unicorn_async.server.client import LOCAL
from unicorn_async.server.options import ServerOptions
from unicorn_async.server.request_context import asking
from unicorn_async.server.service import Service
from unicorn_async.server.tokenizing import WorkThreads
from unicorn_async.tokenizer import LONG_CHARS, ChatMessage, Tokenizer, excerpt, template_process
from unicorn_async.tokenizer.kept_encoder import KeptEncoder
from unicorn_async.tokenizer.local_conversations import LocalConversations
from unicorn_async.tokenizer.template_process import TemplateProcess

if TYPE_CHECKING:
    from unicorn_async.server.model_host import ModelHost
    from unicorn_async.tokenizer.conversation import ChatText
    from unicorn_async.tokenizer.template_messages import Rendering

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
    async with asyncio.timeout(120), service.running():
        waiting = [asyncio.create_task(service.prompts.encode_chat(tokenizer, each)) for each in (LONGER, LONG, LONG)]
        assert await service.prompts.encode_chat(tokenizer, SHORT) == local.encode_chat(SHORT)
        idle = threading.Event()
        service.prompts._tokenizing._long.threads.submit(idle.set)  # type: ignore[union-attr]
        assert await asyncio.to_thread(idle.wait, 120)
        assert not any(task.done() for task in waiting)
        held.made.set()
        found = await asyncio.gather(*waiting)
    assert found == [local.encode_chat(each) for each in (LONGER, LONG, LONG)]
    encoder.close()


async def test_a_text_that_is_refused_is_kept_by_nobody() -> None:
    threads = WorkThreads("refusing")
    text = Text()
    is_there = weakref.ref(text)

    def refuse(text: Text) -> None:
        raise PromptTooLongError("too long")

    gc.collect()
    gc.disable()  # a server's collections are seldom, and large texts are few objects
    try:
        with pytest.raises(PromptTooLongError):
            await threads.run("a", partial(refuse, text))
        del text
        assert await threads.run("a", lambda: is_there() is None)
    finally:
        gc.enable()
        threads.close()


class Text:
    """A text of which somebody can tell whether it is there."""


class Watched(TemplateProcess):
    """Notes whose conversations are begun."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[str, bool]] = []

    def render(self, rendering: Rendering) -> ChatText:
        self.begun.append((rendering.conversation.messages[-1].content[:7], rendering.is_hasty))
        return super().render(rendering)


async def test_a_template_that_takes_long_takes_it_from_who_asks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "SHORT_SECONDS", 0.2)
    monkeypatch.setattr(template_process, "MAX_SECONDS", 600.0)
    demo = Tokenizer.load(demo_model_dir())
    source = demo.facts.template_source(HOSTILE)
    expected = demo.with_conversations(LocalConversations(source)).encode_chat
    service = Service(cast("ModelHost", None), ServerOptions())
    with closing(Watched()) as process:
        process.prepare(source)
        tokenizer = demo.with_conversations(process)

        def ask(client: str, text: str) -> asyncio.Task[list[int]]:
            token = asking.set(replace(LOCAL, name=client))
            try:
                return asyncio.create_task(service.prompts.encode_chat(tokenizer, [ChatMessage("user", text)]))
            finally:
                asking.reset(token)

        async with asyncio.timeout(120), service.running():
            hostile = [ask("eve", "forever") for _ in range(9)]
            assert await ask("ben", "Hi") == expected([ChatMessage("user", "Hi")])
            assert len([said for said in process.begun if said == ("forever", True)]) <= 4
            while process.begun.count(("forever", False)) < 2:
                assert await ask("ben", "Hi") == expected([ChatMessage("user", "Hi")])
            assert not any(task.done() for task in hostile)
            long = ask("ben", "word " * LONG_CHARS)
            for task in hostile:
                task.cancel()
            assert await long == expected([ChatMessage("user", "word " * LONG_CHARS)])
            assert await ask("eve", "Hi") == expected([ChatMessage("user", "Hi")])
