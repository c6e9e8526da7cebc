"""Which request the code that runs belongs to, for log records, and whose it is."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

from unicorn_async.server.client import LOCAL, Client


class RequestContext(NamedTuple):
    """A request's name, as its client gets it in `x-request-id`, and its client's address, behind its key's name."""

    request_id: str
    client: str


current: ContextVar[RequestContext | None] = ContextVar("unicorn_request", default=None)
asking: ContextVar[Client] = ContextVar("unicorn_client", default=LOCAL)  # once it was let pass


def let_pass(client: Client) -> None:
    """Have what follows be this client's, in the log too."""
    asking.set(client)
    context = current.get()
    if context is not None and client.name not in context.client:
        current.set(context._replace(client=f"{client.name} at {context.client}"))
