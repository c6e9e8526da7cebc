"""Renders conversations in this process."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.errors import RequestError
from unicorn_async.tokenizer.broken_texts import broken_message, broken_strings, contributed
from unicorn_async.tokenizer.chat_template import ChatTemplate
from unicorn_async.tokenizer.control_tokens import ControlStrings, unused_mark
from unicorn_async.tokenizer.conversation import ChatText
from unicorn_async.tokenizer.system_text import SYSTEM, before_users, leaves_out

if TYPE_CHECKING:
    from collections.abc import Callable

    from unicorn_async.tokenizer.conversation import Conversation, TemplateSource


class LocalConversations:
    """Keeps what users write from becoming control tokens; see `Conversations`.

    A template's long operations can't be interrupted here: an engine has `TemplateProcess` for it.

    Raises:
        TokenizerError: the template is not valid.
    """

    def __init__(self, source: TemplateSource) -> None:
        self._template = ChatTemplate(source.text, source.variables)
        self._control = ControlStrings(source.control)
        self._left_out: dict[tuple[str, bool], bool] = {}  # roles that were tried, at the start and later

    @property
    def names(self) -> frozenset[str]:
        """Names that the template asks for and does not set itself."""
        return self._template.names

    def hasty(self) -> LocalConversations:
        """Return this: nothing else can wait here."""
        return self

    def text(self, conversation: Conversation) -> ChatText:
        """Return a conversation as text; see `Conversations.text`.

        Where the template leaves system messages out, what they say stands before what the user says next.
        """
        messages = conversation.messages
        left_out = [self._leaves_out(message.role, not index) for index, message in enumerate(messages)]
        if any(left_out):
            messages = before_users(messages, left_out)
            conversation = replace(conversation, messages=messages)
        if not conversation.continue_final:
            return self._render(conversation)
        if not messages or messages[-1].role != "assistant":
            raise RequestError("the last message: expected one of the assistant's, to go on with")
        end = self._unused_mark(conversation)
        marked = [*messages[:-1], replace(messages[-1], content=messages[-1].content + end)]
        text, mark = self._render(replace(conversation, messages=marked, add_generation_prompt=False))
        if text.count(end) != 1:
            raise RequestError(f"the chat template has the last message's end {text.count(end)} times, not once")
        return ChatText(text[: text.index(end)], mark)

    def _leaves_out(self, role: str, at_start: bool) -> bool:
        if role not in SYSTEM:
            return False
        place = (role, at_start)
        if place not in self._left_out:
            self._left_out[place] = leaves_out(self._template, role, at_start=at_start)
        return self._left_out[place]

    def _render(self, conversation: Conversation) -> ChatText:
        """The conversation as text.

        The text with only the whole control tokens broken is what the template means. It is taken unless control
        tokens arise in it that the messages contributed parts of: then every possible beginning is broken.
        """
        messages, tools = conversation.messages, conversation.tools
        render = partial(
            self._template.render,
            add_generation_prompt=conversation.add_generation_prompt,
            variables=conversation.variables,
        )
        mark = self._unused_mark(conversation)
        if not any(map(self._control.may_begin_in, contributed(messages, tools))):
            return ChatText(render(messages, tools=tools), mark)

        def rendered(broken: Callable[[str, str], str]) -> str:
            return render(
                [broken_message(message, lambda text: broken(text, mark)) for message in messages],
                tools=[broken_strings(tool, lambda text: broken(text, mark)) for tool in tools],
            )

        text, safe_text = rendered(self._control.break_whole), rendered(self._control.break_starts)
        if self._control.found_in(text) != self._control.found_in(safe_text):
            return ChatText(safe_text, mark)
        return ChatText(text, mark)

    def _unused_mark(self, conversation: Conversation) -> str:
        """A character that neither the template nor a message nor a tool has."""
        try:
            return unused_mark([self._template.source, *contributed(conversation.messages, conversation.tools)])
        except ValueError as exc:
            raise RequestError("the messages use every private-use character of Unicode") from exc
