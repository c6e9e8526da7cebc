"""The events of a finished response, made again from its object: each text comes in one piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from unicorn_async.server.protocol.retrieval import Retrieval

_FINAL = {"completed": "response.completed", "failed": "response.failed"}
_WHOLE = (".done", *_FINAL.values(), "response.incomplete")
_TEXTS = {"output_text": "response.output_text", "reasoning_text": "response.reasoning_text"}

_Event = tuple[str, dict[str, object]]


def replayed(body: Mapping[str, object], place: Retrieval) -> list[str]:
    """Return the events of a response that has ended, from its object.

    How many deltas there were is not known any more. So behind an event that its client has got come, if what is
    missing may be skipped, those that have the whole of what they are about, with the numbers that follow.

    Raises:
        ApiError: 400, what follows an event is wanted whole.
    """
    if place.after < 0:
        return _numbered(_all_events(body), 0)
    if not place.skip_missing:
        message = f"starting_after: the events of response {str(body['id'])[:100]!r} after {place.after} are not kept;"
        message += " with skip_missing come its last ones, which have the whole text, without starting_after all anew"
        raise ApiError(message, code="events_not_kept", param="starting_after")
    return _numbered([event for event in _all_events(body) if event[0].endswith(_WHOLE)], place.after + 1)


def _numbered(events: Sequence[_Event], first: int) -> list[str]:
    return [
        encode_object({"type": kind, "sequence_number": number, **fields})
        for number, (kind, fields) in enumerate(events, first)
    ]


def _all_events(body: Mapping[str, object]) -> list[_Event]:
    begun = {**body, "status": "in_progress", "output": [], "usage": None, "completed_at": None, "error": None}
    begun["incomplete_details"] = None
    events: list[_Event] = [("response.created", {"response": begun}), ("response.in_progress", {"response": begun})]
    for index, item in enumerate(_objects(body.get("output"))):
        events += _item_events(item, index)
    events.append((_FINAL.get(str(body.get("status")), "response.incomplete"), {"response": body}))
    return events


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
