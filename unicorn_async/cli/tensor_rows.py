"""A model's tensors, one row each: where they come from, where they go, and what is done to them."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING

from unicorn_async.cli.amounts import size
from unicorn_async.tensor import QuantFormat

if TYPE_CHECKING:
    from unicorn_async.checkpoint.checkpoint import Checkpoint
    from unicorn_async.engine.files import ModelFiles
    from unicorn_async.tensor import ElementType
    from unicorn_async.weights.wanted import WantedTensor

_BLOCKS = frozenset(kind.value for kind in QuantFormat)  # of a GGUF file; the kernels want them in another order
_LAYER_NUMBER = re.compile(r"\b(layers|blk)\.\d+\.")


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One tensor of a checkpoint. `layer` is -1 for the embeddings, and after the last one for norm and head."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: str
    layer: int
    destination: str
    row_offset: int
    device_dtype: str
    device_bytes: int
    reordered: bool
    num_adapters: int
    rounding: str = ""  # of the scales of quantised ones
    sorted_columns: bool = False  # by their groups: act-order

    @property
    def transform(self) -> str:
        """What is done with it on the way."""
        same = self._relayout if self.dtype in _BLOCKS else "copied"
        text = same if self.dtype == self.device_dtype else f"{self.dtype} to {self.device_dtype}"
        if self.num_adapters:
            noun = "adapter" if self.num_adapters == 1 else "adapters"
            text = f"{self.dtype} with {self.num_adapters} {noun} to {self.device_dtype}"
        text = f"{text}, {self.rounding}" if self.rounding else text
        text = f"{text}, columns sorted by group" if self.sorted_columns else text
        return f"{text}, rows reordered" if self.reordered else text

    @property
    def _relayout(self) -> str:
        """How a weight of blocks lies, with its bits where they are others than in the file."""
        if self.device_bytes == self.nbytes:
            return "re-layout"
        in_file, there = (8 * nbytes / prod(self.shape) for nbytes in (self.nbytes, self.device_bytes))
        return f"re-layout of {in_file:.3g} bits a weight to {there:.3g}"

    @property
    def pattern(self) -> tuple[object, ...]:
        """What it has in common with the same tensor of other layers."""
        name, destination = (_LAYER_NUMBER.sub(r"\1.*.", text) for text in (self.name, self.destination))
        return name, destination, self.shape, self.dtype, self.row_offset, self.device_dtype, self.num_adapters

    def line(self, width: int) -> str:
        """Return a line of the table, with the name in `width` columns."""
        shape = " × ".join(map(str, self.shape))
        offset = f" from row {self.row_offset}" if self.row_offset else ""
        return (
            f"{self.name:<{width}}{shape:>16}{self.dtype:>9}{size(self.nbytes):>10}"
            f"  {self.destination}{offset}, {self.transform}"
        )

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return {**asdict(self), "shape": list(self.shape), "transform": self.transform}


def tensor_rows(model: ModelFiles) -> list[TensorRow]:
    """Return the rows in the order in which a first prompt needs the tensors."""
    types = model.plan.device_types
    changes = model.lora.changes
    return [
        _row(model.checkpoint, want, types[want.dest, want.name], len(changes.get(want.name, ())))
        for want in model.config.wanted_tensors()
    ]


def _row(checkpoint: Checkpoint, want: WantedTensor, device_type: ElementType, num_adapters: int) -> TensorRow:
    source = checkpoint.tensors[want.name]
    is_turned = want.is_transposed and not isinstance(device_type, QuantFormat)
    packing, shape = source.packing, want.shape if want.file_rows else source.shape
    return TensorRow(
        name=source.name,
        shape=shape,
        dtype=source.dtype,
        nbytes=source.whole_bytes * prod(shape) // prod(source.shape),
        file=checkpoint.files[source.file].name,
        layer=want.layer,
        destination=want.dest,
        row_offset=want.row_offset,
        device_dtype=device_type.value,
        device_bytes=_device_bytes(prod(shape), device_type),
        reordered=source.interleaved_head_rows > 0 or want.head_order is not None or is_turned,
        num_adapters=num_adapters,
        rounding=packing.rounding(device_type) if packing and isinstance(device_type, QuantFormat) else "",
        sorted_columns=packing is not None and packing.order is not None and isinstance(device_type, QuantFormat),
    )


def _device_bytes(num_elements: int, device_type: ElementType) -> int:
    """Bytes of elements on the device, without what is between planes."""
    if isinstance(device_type, QuantFormat):
        return sum(device_type.layout.plane_bytes(num_elements))
    return num_elements * device_type.itemsize
