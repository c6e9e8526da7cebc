"""`/asyncapi.json`: a description of the websocket, AsyncAPI 3.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.server.openapi_schemas import schemas
from unicorn_async.server.protocol.client_event import (
    MAX_RESPONSE_ID,
    MAX_STREAM_ID,
    MAX_WATCH_INTERVAL_MS,
)
from unicorn_async.server.protocol.retrieval import MAX_SEQUENCE_NUMBER

if TYPE_CHECKING:
    from unicorn_async.server.openapi_kinds import Schema

_STREAM: Schema = {"type": ["string", "null"], "maxLength": MAX_STREAM_ID}
_ID: Schema = {"type": "string", "maxLength": MAX_RESPONSE_ID}
_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer", "minimum": 0}
_OBJECT: Schema = {"type": "object"}
_ARRAY: Schema = {"type": "array"}
_FLAG: Schema = {"type": "boolean"}
_AMOUNT: Schema = {"type": "number", "minimum": 0}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_MAYBE_AMOUNT: Schema = {"type": ["number", "null"], "minimum": 0}
_ERROR: Schema = {
    "type": "object",
    "required": ["message", "type", "param", "code"],
    "properties": {"message": _MAYBE_TEXT, "type": _TEXT, "param": _MAYBE_TEXT, "code": _MAYBE_TEXT},
}
_NAMED: dict[str, Schema] = {"item_id": _TEXT, "output_index": _NUMBER, "content_index": _NUMBER}


class Event(NamedTuple):
    """A message by its `type`: what it is for, its fields, and which of them are always there."""

    summary: str
    fields: dict[str, Schema]
    required: tuple[str, ...] = ()


_STEPS: dict[str, Schema] = {
    "model": _MAYBE_TEXT,
    **dict.fromkeys(("dropped", "running", "waiting", "preemptions"), _NUMBER),
    "steps": _ARRAY,
    "own": _OBJECT,
    "cache": _ARRAY,
}

CLIENT_EVENTS: dict[str, Event] = {
    "response.cancel": Event(
        "End the named response, or what runs in the stream.", {"response_id": _TEXT, "stream_id": _STREAM}
    ),
    "unicorn.resume": Event(
        "Follow a background answer, from the event after the one of this number.",
        {
            "response_id": _ID,
            "starting_after": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_SEQUENCE_NUMBER},
            "skip_missing": {"type": ["boolean", "null"]},
            "stream_id": _STREAM,
        },
        ("response_id",),
    ),
    "unicorn.watch": Event(
        "Be told what the steps do, at most as often; 0 is no more.",
        {"interval_ms": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_WATCH_INTERVAL_MS}},
    ),
    "unicorn.auth": Event("Bring the API key, as the first message of a browser.", {"key": _TEXT}, ("key",)),
}


def _of_response(summary: str) -> Event:
    return Event(summary, {"response": _OBJECT}, ("response",))


def _of_part(summary: str, field: str, schema: Schema = _TEXT) -> Event:
    return Event(summary, {**_NAMED, field: schema}, (*_NAMED, field))


def _of_text(summary: str, field: str) -> Event:
    return Event(summary, {**_NAMED, field: _TEXT, "logprobs": _ARRAY}, (*_NAMED, field, "logprobs"))


def _whole(summary: str, **fields: Schema) -> Event:
    """An event whose fields are all there always."""
    return Event(summary, fields, tuple(fields))


def _of_item(summary: str) -> Event:
    return Event(summary, {"output_index": _NUMBER, "item": _OBJECT}, ("output_index", "item"))


def _of_call(summary: str, *fields: str) -> Event:
    place = {"item_id": _TEXT, "output_index": _NUMBER}
    return Event(summary, {**place, **dict.fromkeys(fields, _TEXT)}, (*place, *fields))


ANSWER_EVENTS: dict[str, Event] = {
    "response.created": _of_response("The request is taken."),
    "response.in_progress": _of_response("It is under way; comes again as a sign of life."),
    "response.output_item.added": _of_item("A message, a call, or the model's thoughts begin."),
    "response.content_part.added": _of_part("Its text begins.", "part", _OBJECT),
    "response.output_text.delta": _of_text("More of the answer.", "delta"),
    "response.output_text.done": _of_text("The answer's text.", "text"),
    "response.reasoning_text.delta": _of_part("More of the thoughts.", "delta"),
    "response.reasoning_text.done": _of_part("The thoughts' text.", "text"),
    "response.function_call_arguments.delta": _of_call("More of the arguments of a call.", "delta"),
    "response.function_call_arguments.done": _of_call("The arguments of a call.", "name", "arguments"),
    "response.content_part.done": _of_part("The text has ended.", "part", _OBJECT),
    "response.output_item.done": _of_item("The item has ended."),
    "response.completed": _of_response("The answer is complete."),
    "response.incomplete": _of_response("It was cut off by its limit, or cancelled."),
    "response.failed": _of_response("It failed."),
}
SERVER_EVENTS: dict[str, Event] = {
    "error": Event(
        "A message was refused, or an answer that had begun elsewhere can't be followed.",
        {"status": {"type": "integer", "minimum": 400, "maximum": 599}, "error": _ERROR, "stream_id": _STREAM},
        ("status", "error"),
    ),
    "unicorn.authenticated": Event("The key is good.", {}),
    "unicorn.model": _whole(
        "Which model is served; with `?events=unicorn`.",
        model=_MAYBE_TEXT,
        status=_TEXT,
        waits_for=_MAYBE_TEXT,
        error=_MAYBE_TEXT,
    ),
    "unicorn.load.progress": _whole(
        "How far its load is; with `?events=unicorn`.",
        model=_TEXT,
        bytes_total=_NUMBER,
        bytes_loaded=_NUMBER,
        bytes_per_s=_MAYBE_AMOUNT,
        layers_total=_NUMBER,
        layers_active=_NUMBER,
        seconds=_AMOUNT,
        seconds_left=_MAYBE_AMOUNT,
        share=_AMOUNT,
        from_cache=_FLAG,
        bytes_to_download=_NUMBER,
        bytes_downloaded=_NUMBER,
        done=_FLAG,
        prompts=_OBJECT,
    ),
    "unicorn.load.failed": _whole("It could not be loaded; with `?events=unicorn`.", model=_MAYBE_TEXT, error=_ERROR),
    "unicorn.steps": Event(
        "What the engine's steps did, for who watches; serving.md has each field of a step.",
        {**_STEPS, "heaps": _ARRAY},
        tuple(_STEPS),
    ),
}


def description(version: str) -> dict[str, object]:
    """Return the description; `version` is the server's."""
    sent = {"response.create": _create(), **_messages(CLIENT_EVENTS)}
    numbered = {name: _numbered(event) for name, event in ANSWER_EVENTS.items()}
    received = {**_messages(numbered), **_messages(SERVER_EVENTS)}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "unicorn_async", "version": version, "license": {"name": "Apache-2.0"}},
        "defaultContentType": "application/json",
        "channels": {
            "responses": {
                "address": "/v1/responses",
                "description": "OpenAI's Responses WebSocket mode; a message is a text frame.",
                "messages": {**sent, **received},
            }
        },
        "operations": {
            "ask": _operation("receive", sent),  # as seen from the server
            "answer": _operation("send", received),
        },
    }


def _operation(action: str, names: dict[str, object]) -> dict[str, object]:
    references = [{"$ref": f"#/channels/responses/messages/{name}"} for name in names]
    return {"action": action, "channel": {"$ref": "#/channels/responses"}, "messages": references}


def _numbered(event: Event) -> Event:
    fields = {**event.fields, "sequence_number": _NUMBER, "stream_id": _STREAM}
    return Event(event.summary, fields, (*event.required, "sequence_number"))


def _messages(events: dict[str, Event]) -> dict[str, object]:
    return {name: _message(name, event) for name, event in events.items()}


def _message(name: str, event: Event) -> dict[str, object]:
    payload = {
        "type": "object",
        "required": ["type", *event.required],
        "properties": {"type": {"const": name}, **event.fields},
    }
    return {"name": name, "summary": event.summary, "payload": payload}


def _create() -> dict[str, object]:
    body = schemas()["ResponsesRequest"]
    fields = body["properties"]
    assert isinstance(fields, dict)
    event = Event("Answer this, in this stream.", {**fields, "stream_id": _STREAM})
    return _message("response.create", event)
