"""HTTP/1.1 as it is written: what servers may read in more than one way is refused.

Two servers behind each other that read a message differently let one client's request pass as another's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import h11

if TYPE_CHECKING:
    from h11._connection import NEED_DATA, PAUSED

_HEAD_END = b"\r\n\r\n"
_BARE_LF = re.compile(rb"(?<!\r)\n")
_FOLD = re.compile(rb"\n[ \t]")


class StrictConnection(h11.Connection):
    """h11's connection, which by itself takes lines that end in LF alone, folded headers, and two lengths of a body."""

    def next_event(self) -> h11.Event | type[NEED_DATA] | type[PAUSED]:
        """Return the next event.

        Raises:
            h11.RemoteProtocolError: the request is refused, by RFC 9112's sections 2.2, 5.2 and 6.1, or by h11.
        """
        if self.their_state is h11.IDLE:
            _check_lines(self.trailing_data[0])
        event = super().next_event()
        if isinstance(event, h11.Request):
            _check_length(event)
        return event


def _check_lines(data: bytes) -> None:
    """Look at the head of a request, or at what there is of it."""
    end = data.find(_HEAD_END)
    head = data if end < 0 else data[:end]
    if _BARE_LF.search(head):
        raise h11.RemoteProtocolError("a line of the request's head ends in LF without CR")
    if _FOLD.search(head):
        raise h11.RemoteProtocolError("a header of the request is folded")


def _check_length(request: h11.Request) -> None:
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" not in names:
        return
    if b"content-length" in names:
        raise h11.RemoteProtocolError("the request has both Content-Length and Transfer-Encoding")
    if request.http_version < b"1.1":
        raise h11.RemoteProtocolError("a request of HTTP/1.0 has a Transfer-Encoding")
