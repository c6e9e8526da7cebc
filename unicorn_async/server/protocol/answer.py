"""What a generation tells the encoder of its API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.engine.types import FinishReason, Token
    from unicorn_async.server.protocol.errors import ErrorInfo


class Answer(Protocol):
    """An answer under way: takes tokens, gives the JSON texts to send for them, in order."""

    @property
    def error(self) -> ErrorInfo | None:
        """What made the answer fail."""

    def begin(self) -> Sequence[str]:
        """Return what is sent before anything is computed."""

    def heartbeat(self) -> str | None:
        """Return what shows that the request is alive while no token has come; None where the API has nothing."""

    def opened(self) -> Sequence[str]:
        """Return what comes right before the first token."""

    def token(self, token: Token) -> Sequence[str]:
        """Take a token; return what is sent for it, nothing if it adds nothing to see."""

    def finished(self, reason: FinishReason) -> Sequence[str]:
        """Take the end; return what closes the answer. Valid also before `opened`."""

    def failed(self, error: ErrorInfo) -> Sequence[str]:
        """Take an error that ends the answer; return what says so."""
