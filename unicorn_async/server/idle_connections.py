"""The connections in which nothing is under way: as many as there is room for."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class _Abortable(Protocol):
    def abort(self) -> None: ...


class _Waiting(Protocol):
    @property
    def transport(self) -> _Abortable: ...


class IdleConnections:
    """Those without a request under way, and websockets whose peer has yet to answer that this side closes them.

    Of too many those go that have waited longest, so that there is always one left for a client that asks, whatever
    others keep open.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: OrderedDict[_Waiting, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._idle)

    def begin(self, protocol: _Waiting) -> None:
        """Take a connection that waits from now on, unless it does already."""
        self._idle.setdefault(protocol)
        while len(self._idle) > self._limit:
            oldest, _ = self._idle.popitem(last=False)
            oldest.transport.abort()

    def end(self, protocol: _Waiting) -> None:
        """Let go of one that waits no longer; harmless for others."""
        self._idle.pop(protocol, None)
