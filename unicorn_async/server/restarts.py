"""When a model whose engine failed is opened again."""

from __future__ import annotations

import time

_FIRST_S = 1.0
_MOST_S = 60.0
_SOUND_S = 600.0  # after which a failure is not one more of a row


class Restarts:
    """Counts failures in a row, between which the waits double: an engine that served for ten minutes begins a new row.

    `most` failures in a row are followed by another start, None = any number.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._num_failures = 0
        self._ready_at: float | None = None

    @property
    def have_begun(self) -> bool:
        """Whether the engine serves, or has served before it failed: what fails then is not the first load."""
        return self._num_failures > 0 or self._ready_at is not None

    def note_ready(self) -> None:
        """Remember that the engine serves from now on."""
        self._ready_at = time.monotonic()

    def note_failure(self) -> float | None:
        """Return the seconds until the next start, or None if there is to be none."""
        ready_at, self._ready_at = self._ready_at, None
        if ready_at is not None and time.monotonic() - ready_at >= _SOUND_S:
            self._num_failures = 0
        self._num_failures += 1
        if self._most is not None and self._num_failures > self._most:
            return None
        return min(_FIRST_S * 2.0 ** min(self._num_failures - 1, 16), _MOST_S)
