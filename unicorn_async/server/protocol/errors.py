"""What a client is told when something goes wrong."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.errors import (
    ConfigError,
    EngineClosedError,
    GrammarBusyError,
    GrammarError,
    GrammarLostError,
    ParameterError,
    PromptTooLongError,
    QueueFullError,
    RequestError,
    TokenizerError,
    TokenizerLostError,
    UnicornError,
)
from unicorn_async.server.protocol.encoding import encode_object

if TYPE_CHECKING:
    from collections.abc import Iterator

GRAMMAR_RETRY_S = 10.0  # in which many grammars are compiled


class ApiError(RequestError):
    """A request is refused with an HTTP status, a machine-readable code and the parameter that is to blame."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        retry_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_s = retry_s  # after which it may go well


def load_failed(name: str | None, reason: str | None) -> ApiError:
    """Return the error of a request whose model could not be opened or loaded."""
    reason = (reason or "").removeprefix(f"{name}: ")  # which a file of that name begins with
    return ApiError(f"the model {name!r} could not be loaded: {reason}", status=503, code="model_load_failed")


def engine_failed(name: str | None, reason: str | None, retry_s: float | None = None) -> ApiError:
    """Return the error of a request whose engine has failed; if that is known, it is opened again after `retry_s`."""
    message = f"the engine of {name!r} has failed: {reason}"
    if retry_s is not None:
        message += "; it is opened again"
    return ApiError(message, status=503, code="engine_failed", retry_s=retry_s)


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as every transport reports it."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_s: float | None = None

    @property
    def type(self) -> str:
        """The family that OpenAI's API puts the status into."""
        if self.status >= 500:
            return "server_error"
        named = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        return named.get(self.status, "invalid_request_error")

    @property
    def retry_after(self) -> dict[str, str]:
        """The header that tells a client when to ask again, where it may."""
        if self.status not in (429, 503):
            return {}
        return {"retry-after": str(max(1, math.ceil(self.retry_s or 0)))}

    def to_json(self) -> dict[str, object]:
        """Return the `error` object of a body or an event."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


def describe_error(exc: BaseException) -> ErrorInfo:
    """Turn an exception into what a client may know; faults that are not ours to name say nothing of the inside."""
    if isinstance(exc, ApiError):
        return ErrorInfo(exc.status, str(exc), exc.code, exc.param, exc.retry_s)
    if isinstance(exc, PromptTooLongError):
        return ErrorInfo(400, str(exc), "context_length_exceeded", "input")
    if isinstance(exc, ParameterError):
        return ErrorInfo(400, str(exc), "invalid_value", exc.parameter)
    if isinstance(exc, QueueFullError):
        return ErrorInfo(429, str(exc), "queue_full")
    if isinstance(exc, GrammarBusyError):
        return ErrorInfo(503, str(exc), "grammar_busy", retry_s=GRAMMAR_RETRY_S)
    if isinstance(exc, GrammarLostError):
        return ErrorInfo(503, str(exc), "grammar_lost")
    if isinstance(exc, TokenizerLostError):
        return ErrorInfo(503, str(exc), "tokenizer_lost")
    if isinstance(exc, TokenizerError):
        return ErrorInfo(400, str(exc), "invalid_prompt", "input")
    if isinstance(exc, GrammarError):
        return ErrorInfo(400, str(exc), "invalid_grammar")
    if isinstance(exc, RequestError | ConfigError):
        return ErrorInfo(400, str(exc), "invalid_value")
    if isinstance(exc, EngineClosedError):
        return ErrorInfo(503, str(exc) or "the server is shutting down", "engine_closed")
    if isinstance(exc, UnicornError):
        return ErrorInfo(500, str(exc), "engine_error")
    return ErrorInfo(500, "internal error; the server's log has the details", "internal_error")


@contextmanager
def naming(field: str) -> Iterator[None]:
    """Have what is wrong with a prompt, in the block, name the request's field that it came from."""
    try:
        yield
    except (RequestError, TokenizerError) as exc:
        info = describe_error(exc)
        if isinstance(exc, ApiError | ParameterError | QueueFullError) or info.status != 400:
            raise
        raise ApiError(info.message, code=info.code, param=field) from exc


def error_event(exc: BaseException, sequence_number: int) -> str:
    """Return the Responses API's `error` event, in the place of the event of this number."""
    error = describe_error(exc)
    fields = {"sequence_number": sequence_number, "code": error.code, "message": error.message, "param": error.param}
    return encode_object({"type": "error", **fields})


def no_previous(response_id: str, what: str, code: str) -> ApiError:
    """Return the error for a response that is known, and that none can go on from."""
    return ApiError(f"response {response_id[:100]!r} {what}", code=code, param="previous_response_id")


def unknown_response(response_id: str, code: str, param: str, *, status: int = 404) -> ApiError:
    """Return the error for a response that is not, or no longer, known."""
    shown = response_id[:100]
    return ApiError(f"response {shown!r} is not known here (any more)", status=status, code=code, param=param)
