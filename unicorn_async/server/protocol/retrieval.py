"""The query of GET /v1/responses/{id}."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.query import once_each

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_SEQUENCE_NUMBER = 2**53 - 1  # the largest integer that every JSON reader keeps
INCLUDABLE = frozenset(
    {
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "message.output_text.logprobs",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Which events of a background answer are wanted: those after the one of this number, -1 for all.

    With `skip_missing` those that are no longer kept are left out; else that they are is an error.
    """

    after: int = -1
    skip_missing: bool = False


def parse_retrieval(query: Iterable[tuple[str, str]]) -> Retrieval | None:
    """Return which events are wanted, None for the object in their place.

    `include` is taken, and changes nothing: what it names is in the answer if it was asked for then.

    Raises:
        ApiError: 400, an unknown field, one that is there twice, or a value that is none.
    """
    flags, after = {"stream": False, "skip_missing": False, "include_obfuscation": False}, None
    for name, value in once_each(query, ("include", "include[]")):
        if name in flags:
            if value not in _FLAGS:
                raise ApiError(f"{name}: expected true or false, got {value[:80]!r}", code="invalid_value", param=name)
            flags[name] = _FLAGS[value]
            if name == "include_obfuscation" and flags[name]:
                raise ApiError(f"{name}: events are not obfuscated here", code="unsupported_value", param=name)
        elif name == "starting_after":
            after = parse_event_number(value)
        elif name in ("include", "include[]"):
            if value not in INCLUDABLE:
                message = f"include: expected one of {', '.join(sorted(INCLUDABLE))}, got {value[:80]!r}"
                raise ApiError(message, code="invalid_value", param="include")
        else:
            known = ", ".join(["starting_after", "include", *flags])
            message = f"{name[:80]}: not a field of this request; known are {known}"
            raise ApiError(message, code="unknown_parameter", param=name[:80])
    if not flags["stream"]:
        for name, is_given in (("starting_after", after is not None), ("skip_missing", flags["skip_missing"])):
            if is_given:
                raise ApiError(f"{name}: only with stream=true", code="invalid_value", param=name)
        return None
    return Retrieval(-1 if after is None else after, flags["skip_missing"])


def parse_event_number(value: str) -> int:
    """Return an event's `sequence_number`.

    Raises:
        ApiError: 400, it is none.
    """
    if not (value.isascii() and value.isdigit() and len(value) <= 16 and int(value) <= MAX_SEQUENCE_NUMBER):
        message = f"starting_after: expected the number of an event, got {value[:80]!r}"
        raise ApiError(message, code="invalid_value", param="starting_after")
    return int(value)
