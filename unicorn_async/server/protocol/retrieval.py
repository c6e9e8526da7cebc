"""The query of GET /v1/responses/{id}."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_SEQUENCE_NUMBER = 2**53 - 1  # the largest integer that every JSON reader keeps
_FLAGS = {"true": True, "false": False}


def parse_retrieval(query: Iterable[tuple[str, str]]) -> int | None:
    """Return the number of the event after which the stream begins, -1 for all of it; None asks for the object.

    Raises:
        ApiError: 400, an unknown field, or a value that is none.
    """
    stream, after = False, None
    for name, value in query:
        if name == "stream":
            if value not in _FLAGS:
                raise ApiError(f"stream: expected true or false, got {value[:80]!r}", code="invalid_value", param=name)
            stream = _FLAGS[value]
        elif name == "starting_after":
            after = parse_event_number(value)
        else:
            message = f"{name[:80]}: not a field of this request; known are starting_after and stream"
            raise ApiError(message, code="unknown_parameter", param=name[:80])
    if after is not None and not stream:
        raise ApiError("starting_after: only with stream=true", code="invalid_value", param="starting_after")
    if not stream:
        return None
    return -1 if after is None else after


def parse_event_number(value: str) -> int:
    """Return an event's `sequence_number`.

    Raises:
        ApiError: 400, it is none.
    """
    if not (value.isascii() and value.isdigit() and len(value) <= 16 and int(value) <= MAX_SEQUENCE_NUMBER):
        message = f"starting_after: expected the number of an event, got {value[:80]!r}"
        raise ApiError(message, code="invalid_value", param="starting_after")
    return int(value)
