"""What a server has to answer with, and what becomes of requests meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.server.served_model import ServedModel


class ModelStatus(Enum):
    """What becomes of requests now."""

    EMPTY = "empty"  # refused: there is no model
    WAITING = "waiting"  # they wait, as the next model does, for the last one's answers
    CLOSING = "closing"  # they wait, until the last model is closed
    OPENING = "opening"  # they wait for the model's memory
    LOADING = "loading"  # they are taken, and run as the model's layers arrive
    READY = "ready"
    FAILED = "error"  # refused: the model could not be opened or loaded, and is closed


@dataclass(frozen=True, slots=True)
class ModelState:
    """What is served: `name` is the model that requests get, or will get; `model` is what is open, if only yet."""

    status: ModelStatus
    name: str | None = None
    model: ServedModel | None = None
    error: str | None = None  # why it failed, for clients
    full_error: str | None = None  # the same with paths on the disk, for who runs the server
    waits_for: str | None = None  # while it is opened and loads: files, device, memory, tokenizer or weights
