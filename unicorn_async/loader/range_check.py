"""Values that a weight's type on the device can't hold: counted by the kernels that meet them, an error of the load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import CheckpointError
from unicorn_async.gpu.memory_types import MemoryKind
from unicorn_async.packing import LARGEST_CODES, PlaneUse
from unicorn_async.tensor import QuantFormat
from unicorn_async.weights.chunk import PlaneChunk
from unicorn_async.weights.rules import largest_value

if TYPE_CHECKING:
    from unicorn_async.gpu.memory import Memory
    from unicorn_async.lora.plan import LoraPlan
    from unicorn_async.weights.plan import LoadPlan, TensorPart

_UNCHECKED = (PlaneUse.CODES, PlaneUse.VALUES, PlaneUse.ORDER)
_SUM_HINT = "; the sum is checked alone, so an adapter may be the cause, or the checkpoint's own values"


class RangeCounters:
    """A u32 in mapped memory for each tensor of a plan; `close` frees it, when nothing on the device uses it any more.

    Of a tensor that adapters of `lora` change, it is the sum that is counted.

    Raises:
        OutOfMemoryError: the memory does not fit.
    """

    def __init__(self, memory: Memory, plan: LoadPlan, lora: LoraPlan) -> None:
        parts = [(dest, part) for dest in plan.destinations for part in plan.parts.get(dest.name, ())]
        self._index = {(dest.name, part.name): index for index, (dest, part) in enumerate(parts)}
        self._layers = [dest.layer for dest, _ in parts]
        self._texts = [_text(part, lora) for _, part in parts]
        self._hints = [_SUM_HINT if part.name in lora.changes else "" for _, part in parts]
        self._kinds = [dest.dtype for dest, _ in parts]
        checked = (chunk for chunk in plan.chunks if isinstance(chunk, PlaneChunk))
        planes = {chunk.plane.name: chunk for chunk in checked if chunk.plane.use not in _UNCHECKED}
        self._planes = {name: len(parts) + index for index, name in enumerate(planes)}
        self._plane_chunks = tuple(planes.values())
        count = len(parts) + len(planes)
        self._buffer = memory.allocate(4 * max(count, 1), MemoryKind.STAGING, name="values out of range")
        assert self._buffer.mapped is not None, "staging memory is mapped"
        self._buffer.mapped[:] = bytes(self._buffer.nbytes)

    def address(self, dest: str, name: str) -> int:
        """Return the address of the counter of what a destination has of a tensor, by its canonical name."""
        return self._buffer.address + 4 * self._index[dest, name]

    def plane_address(self, name: str) -> int:
        """Return the address of the counter of a packed matrix's plane, by the file's name; 0 of one without."""
        index = self._planes.get(name)
        return 0 if index is None else self._buffer.address + 4 * index

    def check(self, layer: int) -> None:
        """Check that a layer's conversions, which are done, have met no such value.

        Raises:
            CheckpointError: they have; the message names the first such tensor with its adapters, and how many
                values there are in it.
        """
        assert self._buffer.mapped is not None, "staging memory is mapped"
        if bytes(self._buffer.mapped).count(0) == self._buffer.nbytes:
            return  # of tens of thousands of counters, which mixtures have, each layer would look at all
        counts = self._buffer.mapped.cast("I")
        for chunk, place in zip(self._plane_chunks, self._planes.values(), strict=True):
            if counts[place] and chunk.layer == layer:
                raise CheckpointError(_plane_problem(chunk, counts[place]))
        for index, (owner, count) in enumerate(zip(self._layers, counts, strict=False)):
            if count and owner == layer:
                kind = self._kinds[index]
                if kind is QuantFormat.F8_E4M3:
                    raise CheckpointError(f"{self._texts[index]}: {count} values are no numbers (NaN)")
                raise CheckpointError(
                    f"{self._texts[index]}: {count} values do not fit {kind.value}: they are beyond "
                    f"{largest_value(kind):.6g} in magnitude, or not finite{self._hints[index]}"
                )

    def close(self) -> None:
        """Free the memory."""
        self._buffer.close()


def _plane_problem(chunk: PlaneChunk, count: int) -> str:
    """What is said of values of a plane that are not as they have to be."""
    plane = chunk.plane
    if plane.use is PlaneUse.GROUPS:
        problem = (
            f"{count} of {chunk.columns} columns are not in the group of {plane.expected} in which they lie "
            "(act-order without static groups, or numbers out of range), which is not supported"
        )
    elif plane.use is PlaneUse.CHECKED_ZEROS:
        problem = f"zero points for {count} blocks are not {plane.expected}, which those of symmetric weights are"
    else:
        assert isinstance(chunk.dest_dtype, QuantFormat), "scales that are checked stay scales"
        most = largest_value(chunk.dest_dtype) / LARGEST_CODES[chunk.dest_dtype]
        problem = f"scales for {count} blocks of weights are beyond {most:.6g} in magnitude, or not finite"
    return f"tensor {plane.name!r}: {problem}"


def _text(part: TensorPart, lora: LoraPlan) -> str:
    names = ", ".join(repr(adapter.name) for adapter in lora.adapters if part.name in adapter.pairs)
    return f"tensor {part.source_name!r}" + (f", blended with LoRA {names}" if names else "")
