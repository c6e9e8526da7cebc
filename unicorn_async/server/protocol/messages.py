"""Conversations: the input items of Responses and the messages of Chat Completions, as text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.call_items import (
    merged_calls,
    parse_call_item,
    parse_output_item,
    parse_tool_calls,
)
from unicorn_async.server.protocol.compaction import parse_compaction_item
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import Fields, checked_text, type_name
from unicorn_async.tokenizer import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
MAX_MESSAGES = 4096
# What the APIs and their clients put into messages and their parts; of what is not read, no token depends on it, or it
# is refused by its name.
MESSAGE_FIELDS = frozenset(
    {
        "annotations",
        "audio",
        "cache_control",
        "content",
        "function_call",
        "id",
        "name",
        "parsed",
        "phase",
        "reasoning",
        "reasoning_content",
        "refusal",
        "role",
        "status",
        "tool_call_id",
        "tool_calls",
        "type",
    }
)
# What other servers and gateways put into an assistant's messages, and their clients send back.
HISTORY_FIELDS = frozenset({"provider_specific_fields", "reasoning_details", "thinking_blocks"})
PART_FIELDS = frozenset(
    {"annotations", "cache_control", "logprobs", "prompt_cache_breakpoint", "refusal", "text", "type"}
)


def parse_input(fields: Fields) -> tuple[ChatMessage, ...]:
    """Return the messages of a Responses request's `input`: a string, or an array of message items."""
    value = fields.value("input")
    if value is None:
        return ()
    if isinstance(value, str):
        return (ChatMessage("user", checked_text(value, "input")),)
    if not isinstance(value, list):
        raise fields.wrong("input", "a string or an array")
    return _parse_items(value, "input", items_have_types=True)


def parse_messages(fields: Fields) -> tuple[ChatMessage, ...]:
    """Return the messages of a Chat Completions request."""
    items = fields.array("messages")
    if not items:
        raise ApiError("messages: expected at least one message", code="missing_parameter", param="messages")
    return _parse_items(items, "messages", items_have_types=False)


def merge_system(instructions: str | None, messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Return the conversation with its instructions and its leading system messages as one system message.

    Chat templates take at most one system message, and only at the start.
    """
    leading = 0
    while leading < len(messages) and messages[leading].role == "system":
        leading += 1
    texts = [instructions] if instructions else []
    texts += [message.content for message in messages[:leading]]
    head = (ChatMessage("system", "\n\n".join(texts)),) if texts else ()
    return head + tuple(messages[leading:])


def _parse_items(items: list[object], path: str, *, items_have_types: bool) -> tuple[ChatMessage, ...]:
    if len(items) > MAX_MESSAGES:
        raise ApiError(
            f"{path}: expected at most {MAX_MESSAGES} items, got {len(items)}", param=path, code="invalid_value"
        )
    found: list[ChatMessage] = []
    thoughts = ""  # before the call that comes next
    for index, item in enumerate(items):
        name = f"{path}[{index}]"
        if not isinstance(item, dict):
            raise ApiError(f"{name}: expected an object, got {type_name(item)}", code="invalid_type", param=name)
        fields = Fields(item, name)
        if items_have_types:
            kind = fields.string("type") or "message"
            if kind == "reasoning":
                thoughts = _thoughts(fields)
                continue
            if kind == "function_call":
                found.append(replace(parse_call_item(fields), thoughts=thoughts))
                thoughts = ""
                continue
            thoughts = ""
            if kind == "function_call_output":
                found.append(parse_output_item(fields, parse_text))
                continue
            if kind == "compaction":
                found.append(parse_compaction_item(fields))
                continue
            if kind != "message":
                raise fields.unsupported("type", f"items of type {kind!r} are not supported; send messages")
        found.append(_parse_message(fields))
    return merged_calls(found)


def _parse_message(fields: Fields) -> ChatMessage:
    role = fields.string("role")
    fields.refuse_unknown_values(MESSAGE_FIELDS | HISTORY_FIELDS if role == "assistant" else MESSAGE_FIELDS)
    if role == "tool":
        call_id = fields.string("tool_call_id", max_length=200)
        if not call_id:
            raise fields.wrong("tool_call_id", "a string")
        return ChatMessage("tool", _parse_content(fields), tool_call_id=call_id)
    if role not in ROLES:
        raise fields.wrong("role", f"one of {', '.join((*ROLES, 'tool'))}", code="invalid_value")
    for key in ("function_call", "audio"):
        if fields.value(key):
            raise fields.unsupported(key, "functions in their old form, and audio, are not supported")
    if fields.value("tool_calls") and role != "assistant":
        raise fields.unsupported("tool_calls", f"the role {role!r} calls no tools")
    calls = parse_tool_calls(fields)
    given = (fields.value("reasoning_content"), fields.value("reasoning")) if calls else ()
    thoughts = next((text for text in given if isinstance(text, str) and text), "")
    return ChatMessage(
        ROLES[role], _parse_content(fields), calls, thoughts=checked_text(thoughts, fields.name("reasoning_content"))
    )


def _thoughts(fields: Fields) -> str:
    """The text of thoughts that a client sends back, as far as it has some: they may be encrypted, or summarised."""
    parts = fields.value("content")
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return checked_text("".join(text for text in texts if isinstance(text, str)), fields.name("content"))


def _parse_content(fields: Fields) -> str:
    value = fields.value("content")
    if value is None:
        if fields.string("role") == "assistant":
            return ""
        raise fields.wrong("content", "a string or an array")
    return parse_text(fields, "content")


def parse_text(fields: Fields, key: str) -> str:
    """Return a text, of one string or of several parts.

    Raises:
        ApiError: it is neither, or a part is no text.
    """
    value = fields.value(key)
    if isinstance(value, str):
        return checked_text(value, fields.name(key))
    if not isinstance(value, list):
        raise fields.wrong(key, "a string or an array")
    return "".join(_parse_part(part, f"{fields.name(key)}[{index}]") for index, part in enumerate(value))


def _parse_part(part: object, name: str) -> str:
    if not isinstance(part, dict):
        raise ApiError(f"{name}: expected an object, got {type_name(part)}", code="invalid_type", param=name)
    fields = Fields(part, name)
    kind = fields.string("type")
    if kind == "refusal":
        return fields.string("refusal") or ""
    if kind not in TEXT_PARTS:
        raise fields.unsupported("type", f"content of type {kind!r} is not supported; this server takes text alone")
    fields.refuse_unknown_values(PART_FIELDS)
    text = fields.string("text")
    if text is None:
        raise fields.wrong("text", "a string")
    return text
