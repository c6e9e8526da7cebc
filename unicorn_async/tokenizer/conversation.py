"""Conversations as a chat template is given them, and what comes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unicorn_async.tokenizer.message import ChatMessage


class RenderingSlowError(Exception):
    """A conversation takes longer to render, or gives more text, than those may that others wait for."""


class TemplateSource(NamedTuple):
    """A template, the special tokens that it refers to by name, and the strings of all control tokens."""

    text: str
    variables: Mapping[str, str]
    control: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template makes a text of; see `Tokenizer.encode_chat`."""

    messages: Sequence[ChatMessage]
    add_generation_prompt: bool = True
    continue_final: bool = False
    variables: Mapping[str, object] = field(default_factory=dict)
    tools: Sequence[Mapping[str, object]] = ()


class ChatText(NamedTuple):
    """A conversation as text; wherever the `mark` stands in it, it keeps a control token from arising."""

    text: str
    mark: str

    @property
    def plain(self) -> str:
        """The text that is meant."""
        return self.text.replace(self.mark, "") if self.mark in self.text else self.text


class Conversations(Protocol):
    """Renders conversations by a model's template; any thread may use it."""

    @property
    def names(self) -> frozenset[str]:
        """Names that the template asks for and does not set itself."""

    def text(self, conversation: Conversation) -> ChatText:
        """Return a conversation as text.

        Raises:
            RequestError: the template refuses the conversation, or a role is unknown.
            TokenizerError: the template fails, or exceeds the limits of time and size.
        """

    def hasty(self) -> Conversations:
        """Return one that others wait for: it raises `RenderingSlowError` where a conversation takes longer."""
