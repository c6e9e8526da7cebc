"""What middlewares and websockets need of who answers: a service, or what passes requests on to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from unicorn_async.server.access import Access
    from unicorn_async.server.lane import Lane
    from unicorn_async.server.ledger import Ledger
    from unicorn_async.server.metrics import Metrics
    from unicorn_async.server.model_state import WatchedModels
    from unicorn_async.server.options import ServerOptions
    from unicorn_async.server.step_watch import StepWatchers
    from unicorn_async.server.tracing import Tracing


class Fronted(Protocol):
    """What every request passes."""

    @property
    def access(self) -> Access:
        """Who may ask."""

    @property
    def options(self) -> ServerOptions:
        """Limits and deadlines."""

    @property
    def metrics(self) -> Metrics:
        """What is counted."""

    @property
    def tracing(self) -> Tracing | None:
        """Where spans go, if they are wanted."""


Began = Callable[[str, str | None], None]  # gets the name of a response and that of its lane


class Lanes(Protocol):
    """Makes the lanes of one connection."""

    def lane(self, emit: Callable[[str], Awaitable[None]], stream_id: str | None) -> Lane:
        """Return a lane."""


class Answering(Fronted, Protocol):
    """What a websocket needs."""

    @property
    def models(self) -> WatchedModels:
        """What is served."""

    @property
    def watchers(self) -> StepWatchers:
        """Who watches the steps."""

    @property
    def input_bytes(self) -> Ledger:
        """What clients have under way."""

    async def cancel_background(self, response_id: str) -> bool:
        """End a background answer without waiting for that; return whether one of this name is under way."""
