"""Columns of matrices that the device sorts by their groups: which may have them, and what is read for it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.weights.chunk import PlaneChunk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.checkpoint.source_tensor import SourceTensor
    from unicorn_async.packing import Packing
    from unicorn_async.tensor import QuantFormat


def order_name(dest: str) -> str:
    """Return the name of what has the order of a tensor's columns: which of the model's comes where, (columns) f32."""
    return f"{dest}_order"


def check_order(source: SourceTensor, *, is_gathered: bool) -> None:
    """Raise UnsupportedModelError for a matrix whose columns are sorted, unless its input `is_gathered` likewise."""
    order = None if source.packing is None else source.packing.order
    if order is not None and not is_gathered:
        raise UnsupportedModelError(
            f"tensor {source.name!r}: columns in the groups of {order.name!r} (act-order without static groups), "
            "which here only attention and dense gated FFNs may have"
        )


def check_orders(sources: Sequence[SourceTensor]) -> None:
    """Check that matrices that one product reads have the same order.

    Raises:
        UnsupportedModelError: they don't.
    """
    for source in sources[1:]:
        if _digest(source) != _digest(sources[0]):
            raise UnsupportedModelError(
                f"tensors {sources[0].name!r} and {source.name!r} are used as one, and their columns are in different "
                "groups (act-order without static groups)"
            )


def order_chunk(packing: Packing, dest: str, kind: QuantFormat, layer: int, columns: int) -> PlaneChunk:
    """Return the read of the groups by which columns are sorted; their order goes to `dest`, (columns) f32."""
    plane = packing.order
    assert plane is not None, "its columns are sorted"
    return PlaneChunk(plane.file, plane.offset, plane.nbytes, dest, kind, layer, plane, 0, (), columns, packing.codes)


def _digest(source: SourceTensor) -> str:
    return "" if source.packing is None else source.packing.order_digest
