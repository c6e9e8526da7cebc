"""The server's limits and deadlines on the command line: each field of `ServerOptions` has a flag of its name."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NamedTuple

from unicorn_async.cli.options import byte_size, count
from unicorn_async.server.options import ServerOptions

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_SECONDS = 7 * 24 * 3600


class _Limit(NamedTuple):
    field: str
    what: str


_LIMITS = (
    _Limit("max_connections", "requests and websockets at a time"),
    _Limit("max_client_connections", "of these, of one client"),
    _Limit("max_client_requests", "requests of one client that wait for the model or are answered"),
    _Limit("max_client_input_bytes", "of these requests and of those that wait in streams, of one client"),
    _Limit("max_all_input_bytes", "of these, of all clients"),
    _Limit("max_client_background", "answers of one client that go on without a listener"),
    _Limit("max_background", "of these, of all"),
    _Limit("max_message_bytes", "of one websocket message or HTTP body"),
    _Limit("max_input_bytes", "of the requests of one websocket that wait or are answered"),
    _Limit("max_unread_bytes", "that a client has not taken, of a connection; what comes after it waits"),
    _Limit("max_all_unread_bytes", "of all connections with more than that; the oldest of them is closed"),
    _Limit("max_channels", "streams of one websocket with something to do"),
    _Limit("max_queued", "requests that wait in one of these"),
    _Limit("max_stored", "responses kept for previous_response_id"),
    _Limit(
        "queue_timeout_s",
        "in which a request's model has to be open, and then a place free beside those that are answered",
    ),
    _Limit("header_timeout_s", "in which the head of a request has to come"),
    _Limit("receive_timeout_s", "in which its body has to come"),
    _Limit("send_timeout_s", "after which a client that takes nothing is cut off"),
    _Limit("idle_timeout_s", "after which an HTTP connection without a request is closed"),
    _Limit("keep_events_s", "for which the events of a background answer are kept from its end on"),
)


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    """Add the limits."""
    group = parser.add_argument_group("limits of the server")
    for name, what in _LIMITS:
        default = ServerOptions.__dataclass_fields__[name].default
        parse, metavar = _form(name)
        group.add_argument(_flag(name), dest=name, type=parse, metavar=metavar, help=f"{what} (default {default})")


def _form(name: str) -> tuple[Callable[[str], float], str]:
    if name.endswith("_s"):
        return _seconds, "SECONDS"
    return (byte_size, "SIZE") if name.endswith("_bytes") else (count, "N")


def limits(options: argparse.Namespace) -> dict[str, Any]:
    """Return the limits that the command line gives."""
    found = ((limit.field, getattr(options, limit.field, None)) for limit in _LIMITS)
    return {name: value for name, value in found if value is not None}


def _flag(name: str) -> str:
    return "--" + name.removesuffix("_s").replace("_", "-")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0 and at most {_MAX_SECONDS}, got {text!r}")
    return value
