"""The events of a finished response, made again from its object: each text comes in one piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.server.protocol.encoding import encode_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_FINAL = {"completed": "response.completed", "failed": "response.failed"}
_TEXTS = {"output_text": "response.output_text", "reasoning_text": "response.reasoning_text"}

_Event = tuple[str, dict[str, object]]


def replayed(body: Mapping[str, object]) -> list[str]:
    """Return the events of a response that has ended, from its object."""
    begun = {**body, "status": "in_progress", "output": [], "usage": None, "completed_at": None, "error": None}
    begun["incomplete_details"] = None
    events: list[_Event] = [("response.created", {"response": begun}), ("response.in_progress", {"response": begun})]
    for index, item in enumerate(_objects(body.get("output"))):
        events += _item_events(item, index)
    events.append((_FINAL.get(str(body.get("status")), "response.incomplete"), {"response": body}))
    return [
        encode_object({"type": kind, "sequence_number": number, **fields})
        for number, (kind, fields) in enumerate(events)
    ]


def _item_events(item: Mapping[str, object], index: int) -> Iterator[_Event]:
    begun = {**item, "status": "in_progress", **({"content": []} if "content" in item else {})}
    begun |= {"arguments": ""} if "arguments" in item else {}
    yield "response.output_item.added", {"output_index": index, "item": begun}
    for part_index, part in enumerate(_objects(item.get("content"))):
        place = {"item_id": item.get("id"), "output_index": index, "content_index": part_index}
        yield from _part_events(part, place)
    if item.get("type") == "function_call":
        called = {"item_id": item.get("id"), "output_index": index}
        yield "response.function_call_arguments.delta", {**called, "delta": item.get("arguments")}
        done = {"name": item.get("name"), "arguments": item.get("arguments")}
        yield "response.function_call_arguments.done", {**called, **done}
    yield "response.output_item.done", {"output_index": index, "item": item}


def _part_events(part: Mapping[str, object], place: Mapping[str, object]) -> Iterator[_Event]:
    empty = {**part, "text": "", **({"logprobs": []} if "logprobs" in part else {})}
    yield "response.content_part.added", {**place, "part": empty}
    name = _TEXTS.get(str(part.get("type")))
    if name is not None:
        logprobs = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
        if part.get("text"):
            yield f"{name}.delta", {**place, "delta": part["text"], **logprobs}
        yield f"{name}.done", {**place, "text": part.get("text"), **logprobs}
    yield "response.content_part.done", {**place, "part": part}


def _objects(value: object) -> Sequence[Mapping[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
