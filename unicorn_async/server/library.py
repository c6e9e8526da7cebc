"""Where a server's models come from."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from unicorn_async.config import EngineConfig
from unicorn_async.engine.model_library import ListedModel, PreparedModel
from unicorn_async.errors import ModelNotFoundError
from unicorn_async.public_text import PublicText

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from unicorn_async.engine.model_library import ModelChoice, OnWait, PlannedModel
    from unicorn_async.engine.types import EngineAPI


class Library(Protocol):
    """Where models come from; `ModelLibrary` has those on disk."""

    def models(self, time_s: float) -> tuple[ListedModel, ...]:
        """Return what may be loaded, and read for about `time_s` what is not known yet; blocks on the disk."""

    def adapters(self) -> tuple[str, ...]:
        """Return the names of the LoRA adapters that there are; blocks on the disk."""

    def placement(self, choice: ModelChoice) -> PlannedModel:
        """Plan a model as a load would, if nothing else were on the devices; blocks on the disk."""

    def prepare(self, choice: ModelChoice) -> PreparedModel:
        """Find and check a model; blocks on the disk."""

    def open(self, model: PreparedModel, on_wait: OnWait) -> AbstractAsyncContextManager[EngineAPI]:
        """Open an engine for the block's time; `on_wait` is told what that waits for."""

    @property
    def can_reopen(self) -> bool:
        """Whether a model whose engine has failed can be opened again."""

    async def freed(self) -> None:
        """Wait until the memory of the models that were closed is free again."""

    def public_text(self, text: str) -> str:
        """Return a text as clients may read it: without the folders of the server's disk."""


class OpenEngine:
    """The library of a server whose one engine is open already, and stays its owner's."""

    def __init__(self, engine: EngineAPI) -> None:
        self._engine = engine
        self.model = PreparedModel(engine.model_name, engine.model_name, EngineConfig())
        self.can_reopen = False

    def models(self, time_s: float) -> tuple[ListedModel, ...]:
        """Return the engine's model."""
        return (ListedModel(self.model.name),)

    def adapters(self) -> tuple[str, ...]:
        """Return none."""
        return ()

    def placement(self, choice: ModelChoice) -> PlannedModel:
        """Refuse."""
        raise _not_here(choice)

    def prepare(self, choice: ModelChoice) -> PreparedModel:
        """Refuse."""
        raise _not_here(choice)

    def public_text(self, text: str) -> str:
        """Return a text as clients may read it: without the folders of the server's disk."""
        return PublicText().of(text)

    async def freed(self) -> None:
        """Its owner frees what it has."""

    @asynccontextmanager
    async def open(self, model: PreparedModel, on_wait: OnWait) -> AsyncIterator[EngineAPI]:
        """Give the engine out, and leave it open."""
        yield self._engine


def _not_here(choice: ModelChoice) -> ModelNotFoundError:
    return ModelNotFoundError(f"model {choice.name[:200]!r} is not among those that may be loaded here")
