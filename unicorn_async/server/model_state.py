"""What a server has to answer with, and what becomes of requests meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from unicorn_async.server.protocol.errors import engine_failed, load_failed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unicorn_async.engine.types import LoadProgress
    from unicorn_async.server.protocol.errors import ApiError
    from unicorn_async.server.served_model import ServedModel


class ModelStatus(Enum):
    """What becomes of requests now."""

    EMPTY = "empty"  # refused: there is no model
    WAITING = "waiting"  # they wait, as the next model does, for the last one's answers
    CLOSING = "closing"  # they wait, until the last model is closed
    OPENING = "opening"  # they wait for the model's memory
    LOADING = "loading"  # they are taken, and run as the model's layers arrive
    READY = "ready"
    FAILED = "error"  # refused: the model could not be opened or loaded, or its engine failed, and is closed


@dataclass(frozen=True, slots=True)
class ModelState:
    """What is served: `name` is the model that requests get, or will get; `model` is what is open, if only yet."""

    status: ModelStatus
    name: str | None = None
    model: ServedModel | None = None
    error: str | None = None  # why it failed, for clients
    full_error: str | None = None  # the same with paths on the disk, for who runs the server
    retry_s: float | None = None  # from the failure of an engine that served, until it is opened again
    has_served: bool = False  # what failed was not the first load
    waits_for: str | None = None  # while it is opened and loads: download, files, device, memory, tokenizer or weights
    download: LoadProgress | None = None  # while it waits for that

    @property
    def is_open(self) -> bool:
        """Whether requests are given to the model at once."""
        return self.model is not None and self.status in (ModelStatus.LOADING, ModelStatus.READY)

    def refusal(self) -> ApiError:
        """Return what every request is refused with after a failure."""
        if self.has_served:
            return engine_failed(self.name, self.error, self.retry_s)
        return load_failed(self.name, self.error)


class WatchedModels(Protocol):
    """What is served, as a websocket's client may watch it."""

    @property
    def state(self) -> ModelState:
        """What is served now."""

    def watch(self) -> AsyncIterator[ModelState]:
        """Yield the state now and whenever it has changed; a slow watcher misses states, never the last one."""
