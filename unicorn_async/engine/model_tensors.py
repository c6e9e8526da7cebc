"""A load plan's destinations as the tensors that kernels take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.tensor import DType, QuantTensor, RowParts, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.loader.plan import DestTensor, LoadPlan
    from unicorn_async.tensor import Weight


def vectors_of(plan: LoadPlan, slices: Mapping[str, ArenaSlice]) -> dict[str, Tensor]:
    """Return norm weights and biases by name."""
    tensors = {
        dest.name: _tensor(dest, slices[dest.name].address) for dest in plan.destinations if len(dest.shape) == 1
    }
    return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}


def matrices_of(plan: LoadPlan, slices: Mapping[str, ArenaSlice]) -> dict[str, Weight]:
    """Return all other weights by name; destinations that have parts of the same rows are one."""
    return _matrices(plan, lambda dest: slices[dest.name].address)


def unplaced_matrices(plan: LoadPlan) -> dict[str, Weight]:
    """Return what `matrices_of` does before there is memory for them: all have the address 0."""
    return _matrices(plan, lambda _: 0)


def _matrices(plan: LoadPlan, address_of: Callable[[DestTensor], int]) -> dict[str, Weight]:
    matrices: dict[str, Weight] = {}
    parts: dict[str, list[QuantTensor]] = {}
    for dest in plan.destinations:
        if len(dest.shape) == 1:
            continue
        tensor = _tensor(dest, address_of(dest))
        if dest.whole == dest.name:
            matrices[dest.name] = tensor
        else:
            assert isinstance(tensor, QuantTensor), "only quantised weights come in parts"
            parts.setdefault(dest.whole, []).append(tensor)
    return matrices | {name: RowParts(tuple(members)) for name, members in parts.items()}


def _tensor(dest: DestTensor, address: int) -> Tensor | QuantTensor:
    if isinstance(dest.dtype, DType):
        return Tensor(address, dest.shape, dest.dtype)
    return QuantTensor(address, dest.shape, dest.dtype)
