"""A change of the served model: one load, or one unload."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.engine.model_library import PreparedModel


class Change:
    """What is to be served next (`model` None = nothing), and how far that is; made and used in the loop alone."""

    def __init__(self, model: PreparedModel | None, *, when_idle: bool = False, is_logged: bool = False) -> None:
        """`is_logged`: the log tells why it fails, not only those who wait for it."""
        self.model = model
        self.when_idle = when_idle
        self.is_logged = is_logged
        self.was_opened = False  # requests could be given to the model, whatever came of its load
        self._error: Exception | None = None
        self._opened = asyncio.Event()
        self._done = asyncio.Event()

    @property
    def name(self) -> str | None:
        """Name of the model that is to be served."""
        return self.model.name if self.model is not None else None

    @property
    def is_done(self) -> bool:
        """Whether it has come to its end, good or bad."""
        return self._done.is_set()

    async def opened(self) -> None:
        """Wait until requests can be given to the model, which may still be loading.

        Raises:
            UnicornError: the model could not be opened, or a newer change took the place of this one before.
        """
        await self._opened.wait()
        if not self.was_opened:
            self._raise()

    async def done(self) -> None:
        """Wait until the model is loaded, or nothing is left of the last one.

        Raises:
            UnicornError: the model could not be opened or loaded, or a newer change took the place of this one.
        """
        await self._done.wait()
        self._raise()

    def is_same(self, other: Change) -> bool:
        """Whether both ask for the same, in the same way."""
        return self.model == other.model and self.when_idle == other.when_idle

    def note_opened(self) -> None:
        """Let those go on who wait for `opened`."""
        self.was_opened = True
        self._opened.set()

    def finish(self, error: Exception | None = None) -> None:
        """Let everybody go on; only the first end counts."""
        if not self.is_done:
            self._error = error
            self._opened.set()
            self._done.set()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
