"""GET /v1/responses/{id}/input_items: what a response was made from, a page at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.compaction import SUMMARY, compaction_item
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.hints import INCLUDABLE
from unicorn_async.server.protocol.query import once_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unicorn_async.tokenizer import ChatMessage

MAX_LIMIT = 100
INPUT_TOKENS_FIELDS = frozenset(
    {
        "conversation",
        "input",
        "instructions",
        "model",
        "parallel_tool_calls",
        "previous_response_id",
        "reasoning",
        "text",
        "tool_choice",
        "tools",
        "truncation",
    }
)


@dataclass(frozen=True, slots=True)
class ItemQuery:
    """Which items: so many, after the one of this name, the last one first unless `ascends`."""

    limit: int = 20
    after: str | None = None
    ascends: bool = False


def parse_item_query(query: Iterable[tuple[str, str]]) -> ItemQuery:
    """Return what a query asks for.

    Raises:
        ApiError: 400, an unknown field, one that is there twice, or a value that is none.
    """
    limit, after, ascends = 20, None, False
    for name, value in once_each(query, ("include", "include[]")):
        shown = value[:80]
        if name == "limit":
            if not (value.isascii() and value.isdigit() and len(value) <= 3 and 1 <= int(value) <= MAX_LIMIT):
                raise _wrong(name, f"1 to {MAX_LIMIT}", shown)
            limit = int(value)
        elif name == "order":
            if value not in ("asc", "desc"):
                raise _wrong(name, "asc or desc", shown)
            ascends = value == "asc"
        elif name == "after":
            after = value
        elif name in ("include", "include[]"):
            if value not in INCLUDABLE:
                raise _wrong(name, f"one of {', '.join(INCLUDABLE)}", shown)
        else:
            message = f"{name[:80]}: not a field of this request; known are after, include, limit and order"
            raise ApiError(message, code="unknown_parameter", param=name[:80])
    return ItemQuery(limit, after, ascends)


def item_list(response_id: str, messages: Sequence[ChatMessage], query: ItemQuery) -> dict[str, object]:
    """Return a page of a conversation's items.

    Raises:
        ApiError: 400, there is no item of the name that the page is to follow.
    """
    token = response_id.removeprefix("resp_")
    items = [item for number, message in enumerate(messages) for item in _items(f"{token}_{number}", message)]
    if not query.ascends:
        items.reverse()
    names = [str(item["id"]) for item in items]
    start = 0
    if query.after is not None:
        if query.after not in names:
            raise _wrong("after", "the name of an item", query.after[:80])
        start = names.index(query.after) + 1
    page = items[start : start + query.limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + query.limit < len(items),
    }


def _items(name: str, message: ChatMessage) -> list[dict[str, object]]:
    """A message's items: its text, if it has some beside calls, and these."""
    if message.role == SUMMARY:
        return [compaction_item(f"cmp_{name}", message.content)]
    if message.tool_call_id is not None:
        output = {"call_id": message.tool_call_id, "output": message.content, "status": "completed"}
        return [{"id": f"fco_{name}", "type": "function_call_output", **output}]
    calls: list[dict[str, object]] = [
        {
            "id": f"fc_{name}_{number}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }
        for number, call in enumerate(message.tool_calls)
    ]
    return calls if calls and not message.content else [message_item(f"msg_{name}", message), *calls]


def message_item(name: str, message: ChatMessage) -> dict[str, object]:
    """Return the item of a message's text."""
    part: dict[str, object] = {"type": "input_text", "text": message.content}
    if message.role == "assistant":
        part = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
    return {"id": name, "type": "message", "status": "completed", "role": message.role, "content": [part]}


def _wrong(name: str, wanted: str, value: str) -> ApiError:
    return ApiError(f"{name}: expected {wanted}, got {value!r}", code="invalid_value", param=name)
