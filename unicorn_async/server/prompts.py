"""Prompts: conversations and texts as token ids, made where they hold nobody up."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from unicorn_async.server.ending import Ending
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.template_options import TemplateOptions
from unicorn_async.server.request_context import asking
from unicorn_async.server.tokenizing import Tokenizing
from unicorn_async.server.tool_plan import ToolPlan
from unicorn_async.tokenizer import LONG_CHARS, RenderingSlowError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unicorn_async.errors import UnicornError
    from unicorn_async.tokenizer import ChatMessage, Tokenizer

PLAIN = TemplateOptions()
T = TypeVar("T")
NO_TEMPLATE = "the model has no chat template, and so can't answer conversations; /v1/completions takes plain text"


class Prompts:
    """Encodes what clients ask, in threads from `begin` to `close`; used in the server's loop alone."""

    def __init__(self) -> None:
        self._tokenizing: Tokenizing | None = None
        self._ending = Ending()

    def begin(self) -> None:
        """Have threads for it."""
        self._tokenizing = Tokenizing()

    def end(self, cause: UnicornError) -> None:
        """Have everybody who waits for a text, or is going to, get an error. A second call does nothing."""
        self._ending.come(cause)

    def close(self) -> None:
        """End the threads."""
        if self._tokenizing is not None:
            self._tokenizing.close()

    async def encode_chat(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[ChatMessage],
        options: TemplateOptions = PLAIN,
        max_context: int | None = None,
    ) -> list[int]:
        """Return the ids of a conversation, ready for the answer; `max_context`, if given, has to have room for it.

        Raises:
            ApiError: 400, the model has no chat template, or none with such options.
            UnicornError: as `Tokenizer.encode_chat`.
        """
        return await self._templated(
            tokenizer, messages, options, lambda its: partial(its.encode_chat, max_context=max_context)
        )

    async def chat_text(
        self, tokenizer: Tokenizer, messages: Sequence[ChatMessage], options: TemplateOptions = PLAIN
    ) -> str:
        """Return the text that the model's template makes of a conversation; raises as `encode_chat`."""
        return await self._templated(tokenizer, messages, options, lambda its: its.chat_text)

    async def _templated(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[ChatMessage],
        options: TemplateOptions,
        method: Callable[[Tokenizer], Callable[..., T]],
    ) -> T:
        if not tokenizer.has_chat_template:
            raise ApiError(NO_TEMPLATE, code="no_chat_template", param="model")
        plan = ToolPlan.of(tokenizer, options.use)
        messages, told = plan.conversation(messages), plan.told
        num_chars = sum(message.chars for message in messages) + (len(json.dumps(told)) if told else 0)
        arguments = options.checked(tokenizer)
        return await self.encoded(tokenizer, num_chars, lambda its: method(its)(messages, **arguments, **told))

    async def encoded(self, tokenizer: Tokenizer, num_chars: int, encode: Callable[[Tokenizer], T]) -> T:
        """Return what `encode` makes of a text, where it holds nobody up, nor does what it has to wait for.

        Raises:
            UnicornError: as `encode`, and the cause of the end, if that comes before it.
        """
        async with self._ending.cuts_short():
            return await self._encoded(tokenizer, num_chars, encode)

    async def _encoded(self, tokenizer: Tokenizer, num_chars: int, encode: Callable[[Tokenizer], T]) -> T:
        tokenizing, client = self._tokenizing, asking.get().name
        if tokenizing is None:
            return await tokenizer.encode_soon(encode, _at_once)
        if num_chars <= LONG_CHARS:
            with suppress(RenderingSlowError):
                return await tokenizer.hasty().encode_soon(encode, partial(tokenizing.short, client))
        return await tokenizer.encode_soon(encode, partial(tokenizing.long, client))


async def _at_once(work: Callable[[], T]) -> T:
    return work()
