"""How much a JSON message may hold: counted before it is read, which nothing else goes on beside."""

from __future__ import annotations

from unicorn_async.server.protocol.errors import ApiError

MAX_VALUES = 1 << 19  # most of which may be token ids
MAX_MEMBERS = 1 << 16  # of all objects
MAX_CONTAINERS = 1 << 16  # objects and arrays
MAX_STRINGS = 1 << 17  # with the members' names


def check_extent(text: str) -> None:
    """Refuse a message of more values than any request needs; those in its strings, which cost little, don't count.

    Of a text that is no JSON, what comes before its first fault is counted right.

    Raises:
        ApiError: 413, with what it has too many of.
    """
    num_containers = text.count("[") + text.count("{")
    if text.count(",") < MAX_VALUES and text.count(":") <= MAX_MEMBERS and num_containers <= MAX_CONTAINERS:
        return
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    _check("strings", text.count('"') // 2, MAX_STRINGS)
    outside = "".join(text.split('"')[::2])
    _check("members of objects", outside.count(":"), MAX_MEMBERS)
    _check("objects and arrays", outside.count("[") + outside.count("{"), MAX_CONTAINERS)
    _check("values", outside.count(",") + 1, MAX_VALUES)


def _check(what: str, num: int, most: int) -> None:
    if num > most:
        message = f"the message: expected at most {most} {what}, got {num}"
        raise ApiError(message, status=413, code="message_too_large")
