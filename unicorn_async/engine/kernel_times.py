"""Where the time of steps goes, kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.tensor import QUANT_BLOCK, QuantFormat

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unicorn_async.gpu.timed_recorder import DispatchTime

_ITEM_BYTES = {"f16": 2, "bf16": 2, "f32": 4}
_LAYOUTS = {kind.layout.name: kind.layout for kind in QuantFormat}
_QUANT_KERNELS = (
    "linear_quant_vec_",
    "linear_quant_held_",
    "linear_quant_many_",
    "linear_quant_coopmat_",
    "linear_quant_fragments_",
)


@dataclass(slots=True)
class KernelTime:
    """One kernel at one shape, over all steps of one bucket of tokens; 0 bytes or operations: not counted.

    `nbytes` are of weights, `flops` floating-point operations, both of one dispatch. `detail` is the shape.
    """

    tokens: int
    kernel: str
    detail: str
    nbytes: int
    flops: int
    dispatches: int = 0
    ns: int = 0
    steps: int = 0

    @property
    def us(self) -> float:
        """Mean time of a dispatch in microseconds."""
        return self.ns / self.dispatches / 1e3


class KernelTimes:
    """Sums up what dispatches took, in steps that are noted while `counts` is set."""

    def __init__(self) -> None:
        self.counts = True
        self._times: dict[tuple[int, str, str], KernelTime] = {}
        self._steps: dict[int, int] = {}

    def note_step(self, tokens: int, times: Iterable[DispatchTime]) -> None:
        """Add the dispatches of a step of this bucket of tokens."""
        if not self.counts:
            return
        self._steps[tokens] = self._steps.get(tokens, 0) + 1
        for time in times:
            name = time.kernel.name
            fields = time.kernel.push.unpack(time.push)
            rows, columns = int(fields.get("n", 0)), int(fields.get("k", fields.get("blocks", 0) * QUANT_BLOCK))
            detail = f"{rows}x{columns}" if rows and columns else ""
            key = (tokens, name, detail)
            if key not in self._times:
                nbytes = _weight_bytes(name, rows * columns)
                flops = 2 * rows * columns * int(fields.get("tokens", 0))
                self._times[key] = KernelTime(tokens, name, detail, nbytes, flops)
            entry = self._times[key]
            entry.dispatches += 1
            entry.ns += time.ns

    def table(self) -> tuple[KernelTime, ...]:
        """Return all sums, by bucket and then the longest first."""
        for entry in self._times.values():
            entry.steps = self._steps[entry.tokens]
        return tuple(sorted(self._times.values(), key=lambda entry: (entry.tokens, -entry.ns)))


def _weight_bytes(kernel: str, num_elements: int) -> int:
    for prefix in _QUANT_KERNELS:
        if kernel.startswith(prefix):
            return sum(_LAYOUTS[kernel.removeprefix(prefix)].plane_bytes(num_elements))
    return num_elements * _ITEM_BYTES.get(kernel.rpartition("_")[2], 0)
