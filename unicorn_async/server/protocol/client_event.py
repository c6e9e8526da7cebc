"""What a websocket client may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.responses_request import parse_responses_request
from unicorn_async.server.protocol.retrieval import MAX_SEQUENCE_NUMBER, Retrieval

if TYPE_CHECKING:
    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.server.protocol.fields import Fields
    from unicorn_async.server.protocol.responses_request import ResponsesRequest

MAX_STREAM_ID = 128
MAX_RESPONSE_ID = 200
_FIELDS = {
    "response.cancel": ("response_id", "stream_id"),
    "unicorn.auth": ("key",),
    "unicorn.resume": ("response_id", "skip_missing", "starting_after", "stream_id"),
    "unicorn.watch": ("interval_ms",),
}
MIN_WATCH_INTERVAL_MS, MAX_WATCH_INTERVAL_MS = 100, 60_000


@dataclass(frozen=True, slots=True)
class CreateEvent:
    """`response.create`: answer this, in this channel."""

    request: ResponsesRequest
    stream_id: str | None


@dataclass(frozen=True, slots=True)
class CancelEvent:
    """`response.cancel`: end the named response, or else what runs in the channel."""

    response_id: str | None
    stream_id: str | None


@dataclass(frozen=True, slots=True)
class ResumeEvent:
    """`unicorn.resume`: send these events of a background answer."""

    response_id: str
    place: Retrieval
    stream_id: str | None


@dataclass(frozen=True, slots=True)
class AuthEvent:
    """`unicorn.auth`: the key of a client that can't send headers."""

    key: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """`unicorn.watch`: tell what the steps do, at most as often; 0 is no more."""

    interval_ms: int


ClientEvent = CreateEvent | CancelEvent | ResumeEvent | AuthEvent | WatchEvent


def channel_of(fields: Fields) -> str | None:
    """Return the channel that the event belongs to; None is the connection's nameless channel."""
    return fields.string("stream_id", max_length=MAX_STREAM_ID)


def parse_client_event(fields: Fields, *, defaults: SamplingParams) -> ClientEvent:
    """Check an event.

    Raises:
        ApiError: unknown type, or a body that is refused.
    """
    kind = fields.string("type")
    stream_id = channel_of(fields)
    if kind == "response.create":
        if fields.boolean("stream") is False:
            raise fields.unsupported("stream", "a websocket streams every answer")
        body = fields.without("type", "stream_id")
        return CreateEvent(parse_responses_request(body, defaults=defaults), stream_id)
    if kind in _FIELDS:
        fields.refuse_unknown_values(("type", *_FIELDS[kind]))
    if kind == "response.cancel":
        return CancelEvent(fields.string("response_id"), stream_id)
    if kind == "unicorn.resume":
        response_id = fields.string("response_id", max_length=MAX_RESPONSE_ID)
        if response_id is None:
            raise fields.wrong("response_id", "a string")
        after = fields.integer("starting_after", 0, MAX_SEQUENCE_NUMBER)
        place = Retrieval(-1 if after is None else after, fields.boolean("skip_missing") is True)
        return ResumeEvent(response_id, place, stream_id)
    if kind == "unicorn.watch":
        interval_ms = fields.integer("interval_ms", 0, MAX_WATCH_INTERVAL_MS)
        if interval_ms is None:
            interval_ms = MIN_WATCH_INTERVAL_MS
        if 0 < interval_ms < MIN_WATCH_INTERVAL_MS:
            raise fields.wrong("interval_ms", f"0, or at least {MIN_WATCH_INTERVAL_MS}", code="invalid_value")
        return WatchEvent(interval_ms)
    if kind == "unicorn.auth":
        key = fields.string("key")
        if key is None:
            raise fields.wrong("key", "a string")
        return AuthEvent(key)
    if kind is None:
        raise ApiError("type: expected the name of an event", code="missing_parameter", param="type")
    raise ApiError(f"type: {kind[:80]!r} is not an event of this server", code="unknown_event", param="type")
