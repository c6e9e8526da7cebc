"""Calls of tools, and what these returned, among the messages of a conversation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import Fields, type_name
from unicorn_async.tokenizer import ChatMessage, ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MOST_ID = 200


def parse_call_item(fields: Fields) -> ChatMessage:
    """Return the message of an input item `function_call`."""
    return ChatMessage("assistant", "", (_call(_needed(fields, "call_id"), fields),))


def parse_output_item(fields: Fields, parse_text: Callable[[Fields, str], str]) -> ChatMessage:
    """Return the message of an input item `function_call_output`, whose text is read by `parse_text`."""
    if fields.value("output") is None:
        raise fields.wrong("output", "a string or an array")
    return ChatMessage("tool", parse_text(fields, "output"), tool_call_id=_needed(fields, "call_id"))


def parse_tool_calls(fields: Fields) -> tuple[ToolCall, ...]:
    """Return the calls of an assistant's message in a chat completion."""
    found: list[ToolCall] = []
    for index, item in enumerate(fields.array("tool_calls") or []):
        name = f"{fields.name('tool_calls')}[{index}]"
        if not isinstance(item, dict):
            raise ApiError(f"{name}: expected an object, got {type_name(item)}", code="invalid_type", param=name)
        call = Fields(item, name)
        if call.string("type") not in (None, "function"):
            raise call.unsupported("type", "this server takes functions alone")
        function = call.object("function")
        if function is None:
            raise call.wrong("function", "an object")
        found.append(_call(_needed(call, "id"), function))
    return tuple(found)


def merged_calls(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Return the messages with calls that follow each other, or the assistant's text, in one message."""
    found: list[ChatMessage] = []
    for message in messages:
        last = found[-1] if found else None
        if last is not None and last.role == message.role == "assistant" and message.tool_calls and not message.content:
            calls = last.tool_calls + message.tool_calls
            found[-1] = replace(last, tool_calls=calls, thoughts=last.thoughts or message.thoughts)
        else:
            found.append(message)
    return tuple(found)


def check_calls(messages: Sequence[ChatMessage], param: str) -> None:
    """Refuse what a tool returned where nothing called it before.

    Raises:
        ApiError: such a call is not there.
    """
    known: set[str] = set()
    for message in messages:
        known.update(call.id for call in message.tool_calls)
        if message.tool_call_id is not None and message.tool_call_id not in known:
            text = f"{param}: no call {message.tool_call_id!r} comes before what it returned"
            raise ApiError(text, code="invalid_value", param=param)


def _call(call_id: str, fields: Fields) -> ToolCall:
    return ToolCall(call_id, _needed(fields, "name"), fields.string("arguments") or "{}")


def _needed(fields: Fields, key: str) -> str:
    text = fields.string(key, max_length=_MOST_ID)
    if not text:
        raise fields.wrong(key, "a string")
    return text
