"""Whether it is faster to bring a prompt's blocks back than to compute them, by what either took."""

from __future__ import annotations

from collections import deque
from statistics import median

_KEPT = 9  # measurements of each kind
_TRIED_AGAIN_AFTER = 32  # times that it did not pay


class _Rate:
    """Seconds for one of something, as lately measured; 0 where nothing was."""

    def __init__(self) -> None:
        self._each: deque[float] = deque(maxlen=_KEPT)

    def observe(self, count: int, seconds: float) -> None:
        if count > 0 and seconds > 0:
            self._each.append(seconds / count)

    @property
    def each_s(self) -> float:
        return median(self._each) if self._each else 0.0


class FetchCosts:
    """What was measured of steps with prompts, of copies between the host and the device, and of the disk.

    What was never measured costs nothing, and so is tried; what did not pay is tried again now and then.
    """

    def __init__(self) -> None:
        self.computed = _Rate()  # tokens of prompts
        self.copied = _Rate()  # bytes from the host to the device
        self.read = _Rate()  # bytes from the disk
        self._num_refused = 0

    def compute_s(self, num_tokens: int) -> float:
        """Return how long so many tokens of a prompt would take; 0 where that was not measured."""
        return num_tokens * self.computed.each_s

    def pays(self, num_tokens: int, nbytes: int, disk_bytes: int) -> bool:
        """Whether to bring so many bytes back, a part of them from the disk, for so many tokens."""
        fetch_s = nbytes * self.copied.each_s + disk_bytes * self.read.each_s
        compute_s = self.compute_s(num_tokens)
        if not compute_s or fetch_s < compute_s:
            return True
        self._num_refused += 1
        return self._num_refused % _TRIED_AGAIN_AFTER == 0

    def disk_pays(self, num_tokens: int, nbytes: int) -> bool:
        """Whether a block of so many tokens would be read faster than computed, as far as that is known."""
        return not self.computed.each_s or nbytes * self.read.each_s < self.compute_s(num_tokens)
