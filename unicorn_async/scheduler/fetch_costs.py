"""Whether it is faster to bring a prompt's blocks back than to compute them, by what either took."""

from __future__ import annotations

from collections import deque
from statistics import median_low

_KEPT = 9  # measurements of each kind
_TRIED_AGAIN_AFTER = 32  # times that it did not pay
_WRITTEN_AGAIN = 32  # blocks in a row, since one is of no use without those before it in its text
_PATIENCE = 1.5  # times what computing takes
_LEAST_PATIENCE_S = 1.0  # less is no matter to anybody, and a disk may have been asleep


class _Rate:
    """Seconds for one of something, as lately measured; 0 where nothing was."""

    def __init__(self) -> None:
        self._each: deque[float] = deque(maxlen=_KEPT)

    def observe(self, count: int, seconds: float) -> None:
        if count > 0 and seconds > 0:
            self._each.append(seconds / count)

    def begin_anew(self, count: int, seconds: float) -> None:
        """Go by this measurement, whatever there was before."""
        self._each.clear()
        self.observe(count, seconds)

    @property
    def each_s(self) -> float:
        return median_low(self._each) if self._each else 0.0


class FetchCosts:
    """What was measured of steps with prompts, of copies between the host and the device, and of the disk.

    What was never measured costs nothing, and so is tried; what did not pay is tried again now and then.
    """

    def __init__(self) -> None:
        self.computed = _Rate()  # tokens of prompts
        self.copied = _Rate()  # bytes from the host to the device
        self.read = _Rate()  # bytes from the disk
        self._num_refused = 0
        self._num_unwritten = 0

    def compute_s(self, num_tokens: int) -> float:
        """Return how long so many tokens of a prompt would take; 0 where that was not measured."""
        return num_tokens * self.computed.each_s

    def pays(self, num_tokens: int, nbytes: int, disk_bytes: int) -> bool:
        """Whether to bring so many bytes back, a part of them from the disk, for so many tokens: each call is a try."""
        if self.is_faster(num_tokens, nbytes, disk_bytes):
            return True
        self._num_refused += 1
        return self._num_refused % _TRIED_AGAIN_AFTER == 0

    def is_faster(self, num_tokens: int, nbytes: int, disk_bytes: int) -> bool:
        """Whether to bring so many bytes back is faster than to compute so many tokens, as far as that is known."""
        fetch_s, compute_s = nbytes * self.copied.each_s + disk_bytes * self.read.each_s, self.compute_s(num_tokens)
        return not compute_s or fetch_s < compute_s

    def patience_s(self, num_tokens: int) -> float | None:
        """Return how long to wait for what computes as so many tokens; None where nothing was computed yet."""
        return max(_PATIENCE * self.compute_s(num_tokens), _LEAST_PATIENCE_S) if self.computed.each_s else None

    def pays_to_go_on(self, num_tokens: int, nbytes: int, read_s: float) -> bool:
        """Whether to wait for the rest, so many bytes for so many tokens, that the disk is to take `read_s` for."""
        rest_s, compute_s = nbytes * self.copied.each_s + read_s, self.compute_s(num_tokens)
        return not compute_s or rest_s <= max(compute_s, _LEAST_PATIENCE_S)

    def disk_pays(self, num_tokens: int, nbytes: int) -> bool:
        """Whether to write a block of so many tokens: it would be read faster than computed, as far as that is known.

        A disk of which nothing is left to read would be taken for slow for ever; so some are written now and then.
        """
        if not self.computed.each_s or nbytes * self.read.each_s < self.compute_s(num_tokens):
            return True
        self._num_unwritten += 1
        return self._num_unwritten // _WRITTEN_AGAIN % _TRIED_AGAIN_AFTER == _TRIED_AGAIN_AFTER - 1
