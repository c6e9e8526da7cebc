"""Which request the code that runs belongs to, for log records."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class RequestContext(NamedTuple):
    """A request's name, as its client gets it in `x-request-id`, and the client's address."""

    request_id: str
    client: str


current: ContextVar[RequestContext | None] = ContextVar("unicorn_request", default=None)
