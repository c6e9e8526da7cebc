"""The Harmony format of gpt-oss: messages in channels, each behind a header.

    <|channel|>analysis<|message|>thoughts<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>arguments<|call|>
    <|start|>assistant<|channel|>final<|message|>answer<|return|>

The marks are control tokens, which otherwise have no text. Here they get one that no text of a model has, since a model
may well write about the format. Source: OpenAI's description of the format, and the chat template of gpt-oss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

APART = "\0"  # in front of a control token's own text
START, END, RETURN, CALL = (f"{APART}<|{name}|>" for name in ("start", "end", "return", "call"))
CHANNEL, CONSTRAIN, MESSAGE = (f"{APART}<|{name}|>" for name in ("channel", "constrain", "message"))
MARKS = (START, END, RETURN, CALL, CHANNEL, CONSTRAIN, MESSAGE)
EFFORTS = ("low", "medium", "high")
FUNCTIONS = "functions."  # the namespace of a request's tools


def is_harmony(template: str | None) -> bool:
    """Whether a chat template has this format."""
    return template is not None and all(mark.removeprefix(APART) in template for mark in (START, CHANNEL, MESSAGE))


def marks_of(control_id: Callable[[str], int | None]) -> dict[int, str]:
    """Return the marks that are control tokens, by their ids; `control_id` looks for a token by its text."""
    found = ((control_id(mark.removeprefix(APART)), mark) for mark in MARKS)
    return {token_id: mark for token_id, mark in found if token_id is not None}
