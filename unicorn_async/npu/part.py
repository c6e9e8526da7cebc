"""A part of a step: what one run of the NPU works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.npu.geometry import BF16_BYTES, F32_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unicorn_async.npu.work import Item


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PreparedPart:
    """What one run works on: items with up to `strips` strips each, their parameters and the run's instructions.

    It takes `guess_s` seconds by a guess, and was halved `cuts` times.

    `first` is the number of the first among packets and results: 0 where a run has those for itself. `tokens` and
    `heads` are the place in q of each row, `used` says which rows there are; (items, rows) each.
    """

    items: tuple[Item, ...]
    strips: int
    result_bytes: int  # of an item of so many strips
    parameters: NDArray[np.int32]  # (items, words)
    tokens: NDArray[np.int64]
    heads: NDArray[np.int64]
    used: NDArray[np.bool_]
    stream: NDArray[np.uint32]
    first: int
    guess_s: float
    cuts: int = 0

    @property
    def load_bytes(self) -> int:
        """Bytes that are copied for a run, if nothing of the part is there already: its queries and instructions."""
        return self.result_bytes * len(self.items) * BF16_BYTES // F32_BYTES + self.stream.nbytes
