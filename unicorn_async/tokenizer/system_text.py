"""What the system says, for chat templates that leave it out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.errors import UnicornError
from unicorn_async.tokenizer.message import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.tokenizer.chat_template import ChatTemplate

SYSTEM = frozenset(("developer", "system"))
_SAID, _ASKED = "saidbysystem", "askedbyuser"


def leaves_out(template: ChatTemplate, role: str, *, at_start: bool) -> bool:
    """Whether a template renders a conversation without what a system message says, at its start or later.

    One that refuses such conversations, or fails, says so itself.
    """
    before = () if at_start else (ChatMessage("user", "hello"), ChatMessage("assistant", "hello"))
    asked = (*before, ChatMessage(role, _SAID), ChatMessage("user", _ASKED))
    try:
        text = template.render(asked, add_generation_prompt=True).lower()
    except UnicornError:
        return False
    return _SAID not in text and _ASKED in text


def before_users(messages: Sequence[ChatMessage], is_left_out: Sequence[bool]) -> list[ChatMessage]:
    """Return a conversation in which what messages that are left out say stands before what the user says next."""
    found: list[ChatMessage] = []
    said: list[str] = []
    for message, is_out in zip(messages, is_left_out, strict=True):
        if is_out:
            said.append(message.content)
        elif message.role == "user" and said:
            found.append(replace(message, content="\n\n".join([*said, message.content])))
            said = []
        else:
            found.append(message)
    return [*found, ChatMessage("user", "\n\n".join(said))] if said else found
