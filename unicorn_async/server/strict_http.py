"""HTTP/1.1 as it is written: what servers may read in more than one way is refused.

Two servers behind each other that read a message differently let one client's request pass as another's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import h11
from h11._receivebuffer import ReceiveBuffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from h11._connection import NEED_DATA, PAUSED

MAX_HEAD_BYTES = 32 << 10
MAX_HEADERS = 128  # as many as a websocket's handshake may have
MAX_TURN_EVENTS = 32  # of a connection, in one turn of the event loop: heads, parts of bodies and their ends
_HEAD_END = b"\r\n\r\n"
_BARE_LF = re.compile(rb"(?<!\r)\n")
_FOLD = re.compile(rb"\n[ \t]")
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#]*)(.*)", re.DOTALL)


class _Received(ReceiveBuffer):
    """What has come; behind a chunked body nothing but an empty line is taken (RFC 9112, section 7.1.2)."""

    def __init__(self) -> None:
        super().__init__()
        self.is_body = False

    def maybe_extract_lines(self) -> list[bytearray] | None:
        if not self.is_body:
            return super().maybe_extract_lines()
        end = bytes(self._data[:2])
        if end == b"\r\n":
            self.maybe_extract_at_most(2)
            return []
        if end in (b"", b"\r"):
            return None
        raise h11.RemoteProtocolError("a chunked body ends in trailer fields, or in LF without CR")


class StrictConnection(h11.Connection):
    """h11's connection, which by itself takes lines that end in LF alone, folded headers, trailers, and two lengths.

    A client that sends a body in many small parts gets so many events; who calls sets `events_left` for the next ones.
    """

    def __init__(self, on_refused: Callable[[h11.RemoteProtocolError], None]) -> None:
        """`on_refused` is told, once, that no more events come, and why: RFC 9112's rules, or h11's."""
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)
        self._receive_buffer = self._received = _Received()
        self._on_refused = on_refused
        self._is_refused = False
        self._may_skip_line = True
        self.events_left = MAX_TURN_EVENTS

    @property
    def is_begun(self) -> bool:
        """Whether a request has begun to come, with more than an empty line, or is not whole yet."""
        return self.their_state is not h11.IDLE or self.trailing_data[0] not in (b"", b"\r")

    def next_event(self) -> h11.Event | type[NEED_DATA] | type[PAUSED]:
        """Return the next event; "more data is needed" where it is refused, or where none is left."""
        if self._is_refused or not self.events_left:
            return h11.NEED_DATA
        try:
            event = self._checked_event()
        except h11.RemoteProtocolError as exc:
            self._is_refused = True
            self._on_refused(exc)
            return h11.NEED_DATA
        self.events_left -= isinstance(event, h11.Event)
        return event

    def _checked_event(self) -> h11.Event | type[NEED_DATA] | type[PAUSED]:
        self._received.is_body = self.their_state is h11.SEND_BODY
        if self.their_state is h11.IDLE:
            if self._may_skip_line and self.trailing_data == (b"\r", False):
                return h11.NEED_DATA  # half of what may be skipped
            self._skip_line()
            _check_lines(self.trailing_data[0])
        event = super().next_event()
        if not isinstance(event, h11.Request):
            return event
        self._may_skip_line = True
        _check_head(event)
        return _with_path(event)

    def _skip_line(self) -> None:
        """Take an empty line off what comes before a request, as some clients have it (RFC 9112, section 2.2)."""
        if self._may_skip_line and self.trailing_data[0].startswith(b"\r\n"):
            self._receive_buffer.maybe_extract_at_most(2)
            self._may_skip_line = False


def reason_of(exc: h11.RemoteProtocolError) -> str:
    """Return why a request is refused; what h11 shows of it is shown as text, not as an object of Python's."""
    kind, _, shown = str(exc).partition("bytearray(b")
    return kind + shown.removesuffix(" (expected b'\\r\\n')").removesuffix(")")


def _check_lines(data: bytes) -> None:
    """Look at the head of a request, or at what there is of it."""
    end = data.find(_HEAD_END)
    head = data if end < 0 else data[:end]
    if _BARE_LF.search(head):
        raise h11.RemoteProtocolError("a line of the request's head ends in LF without CR")
    if _FOLD.search(head):
        raise h11.RemoteProtocolError("a header of the request is folded")
    if end > MAX_HEAD_BYTES:
        message = f"the request's head has {end} bytes, {MAX_HEAD_BYTES} are allowed"
        raise h11.RemoteProtocolError(message, error_status_hint=431)


def _check_head(request: h11.Request) -> None:
    if not request.http_version.startswith(b"1."):
        raise h11.RemoteProtocolError(f"expected HTTP/1.1, got HTTP/{request.http_version.decode()}")
    if len(request.headers) > MAX_HEADERS:
        message = f"the request has {len(request.headers)} headers, {MAX_HEADERS} are allowed"
        raise h11.RemoteProtocolError(message, error_status_hint=431)
    names = [name for name, _ in request.headers]
    if names.count(b"authorization") > 1:
        raise h11.RemoteProtocolError("the request has more than one Authorization header")
    if b"transfer-encoding" not in names:
        return
    if b"content-length" in names:
        raise h11.RemoteProtocolError("the request has both Content-Length and Transfer-Encoding")
    if request.http_version < b"1.1":
        raise h11.RemoteProtocolError("a request of HTTP/1.0 has a Transfer-Encoding")


def _with_path(request: h11.Request) -> h11.Request:
    """Return a request whose target is a path: an address of this server's becomes one (RFC 9112, section 3.2.2)."""
    if request.target.startswith(b"/"):
        return request
    found = _ABSOLUTE.fullmatch(request.target)
    if found is None:
        raise h11.RemoteProtocolError("the request's target is no path")
    authority, rest = found.groups()
    if authority.lower() != dict(request.headers).get(b"host", b"").lower():
        raise h11.RemoteProtocolError("the request's target is of another host than its Host header")
    path = rest if rest.startswith(b"/") else b"/" + rest
    headers = request.headers.raw_items()
    return h11.Request(method=request.method, headers=headers, target=path, http_version=request.http_version)
