"""An instance that is made while its user is still imported."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from unicorn_async.gpu.instance import Instance

if TYPE_CHECKING:
    from types import TracebackType


class InstanceStart:
    """Begins to make an instance in a thread; whoever `take`s it closes it, else `close` does.

    A driver may take a fifth of a second to load its libraries, which needs nothing of Python. What is imported
    meanwhile, and reads files, costs no time beside it.
    """

    def __init__(self, *, validation: bool = False) -> None:
        """Begin, with Vulkan's validation layers if wanted."""
        self._validation = validation
        self._instance: Instance | None = None
        self._error: Exception | None = None
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._create, name="open Vulkan")
        self._thread.start()

    def take(self, *, validation: bool = False) -> Instance:
        """Wait for the instance and return it; who comes later, or wants other validation, gets one of its own.

        Raises:
            VulkanUnavailableError, MissingFeatureError: as `Instance.create`.
        """
        self._thread.join()
        with self._turn:
            error, self._error = self._error, None
            instance = None
            if validation == self._validation:
                if error is not None:
                    raise error
                instance, self._instance = self._instance, None
        return Instance.create(validation=validation) if instance is None else instance

    def close(self) -> None:
        """Wait for the thread, and close the instance if nobody took it."""
        self._thread.join()
        with self._turn:
            instance, self._instance = self._instance, None
        if instance is not None:
            instance.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _create(self) -> None:
        try:
            self._instance = Instance.create(validation=self._validation)
        except Exception as exc:  # raised where the instance is wanted
            self._error = exc
