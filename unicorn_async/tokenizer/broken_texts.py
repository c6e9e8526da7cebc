"""The texts that somebody else wrote, wherever they stand in messages and tools."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from unicorn_async.tokenizer.message import ChatMessage

T = TypeVar("T")


def contributed(messages: Iterable[ChatMessage], tools: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """Yield all texts of messages and tools."""
    for message in messages:
        yield from _texts_of(message)
    for tool in tools:
        yield from _strings_in(tool)


def _texts_of(message: ChatMessage) -> Iterator[str]:
    yield message.content
    yield message.thoughts
    for call in message.tool_calls:
        yield from (call.id, call.name, call.arguments)
    if message.tool_call_id is not None:
        yield message.tool_call_id


def broken_message(message: ChatMessage, broken: Callable[[str], str]) -> ChatMessage:
    """Return a message with each of its texts broken."""
    calls = tuple(
        replace(call, id=broken(call.id), name=broken(call.name), arguments=broken(call.arguments))
        for call in message.tool_calls
    )
    call_id = None if message.tool_call_id is None else broken(message.tool_call_id)
    content, thoughts = broken(message.content), broken(message.thoughts)
    return replace(message, content=content, tool_calls=calls, tool_call_id=call_id, thoughts=thoughts)


def _strings_in(value: object) -> Iterator[str]:
    """The strings of a JSON value, keys among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings_in(inner)


def broken_strings(value: T, broken: Callable[[str], str]) -> T:
    """Return a JSON value with each of its strings broken."""
    if isinstance(value, str):
        return cast("T", broken(value))
    if isinstance(value, dict):
        return cast("T", {broken(key): broken_strings(inner, broken) for key, inner in value.items()})
    if isinstance(value, list | tuple):
        return cast("T", [broken_strings(inner, broken) for inner in value])
    return value
