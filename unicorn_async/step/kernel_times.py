"""Where the time of steps goes, kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.step.work import dispatch_work

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.gpu.timed_recorder import DispatchTime


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel at one shape, over all steps of one bucket of tokens; 0 bytes or operations: not counted.

    `nbytes` and `flops` are means of a dispatch, see `dispatch_work`. `detail` is the shape of a product, and the
    window of attention that has one.
    """

    tokens: int
    kernel: str
    detail: str
    nbytes: int
    flops: int
    dispatches: int
    ns: int
    steps: int

    @property
    def us(self) -> float:
        """Mean time of a dispatch in microseconds."""
        return self.ns / self.dispatches / 1e3


@dataclass(slots=True)
class _Sums:
    nbytes: int = 0
    flops: int = 0
    dispatches: int = 0
    ns: int = 0


class KernelTimes:
    """Sums up what dispatches took, in steps that are noted while `counts` is set."""

    def __init__(self) -> None:
        self.counts = True
        self._sums: dict[tuple[int, str, str], _Sums] = {}
        self._steps: dict[int, int] = {}

    def note_step(self, tokens: int, times: Iterable[DispatchTime]) -> None:
        """Add the dispatches of a step of this bucket of tokens, while its frames still hold it."""
        if not self.counts:
            return
        self._steps[tokens] = self._steps.get(tokens, 0) + 1
        for time in times:
            detail, nbytes, flops = dispatch_work(time)
            sums = self._sums.setdefault((tokens, time.kernel.name, detail), _Sums())
            sums.nbytes += nbytes
            sums.flops += flops
            sums.dispatches += 1
            sums.ns += time.ns

    def table(self) -> tuple[KernelTime, ...]:
        """Return all sums, by bucket and then the longest first."""
        found = [
            KernelTime(
                tokens,
                kernel,
                detail,
                sums.nbytes // sums.dispatches,
                sums.flops // sums.dispatches,
                sums.dispatches,
                sums.ns,
                self._steps[tokens],
            )
            for (tokens, kernel, detail), sums in self._sums.items()
        ]
        return tuple(sorted(found, key=lambda time: (time.tokens, -time.ns)))
