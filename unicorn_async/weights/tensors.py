"""A load plan's destinations as the tensors that kernels take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from unicorn_async.tensor import DType, MixedTensor, QuantTensor, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from unicorn_async.gpu.arena import ArenaSlice
    from unicorn_async.tensor import Weight
    from unicorn_async.weights.plan import DestTensor, LoadPlan


_T = TypeVar("_T")


class PlacedTensors(Mapping[str, _T], Generic[_T]):
    """A plan's tensors by name: all are named, and each can be had from when all of it has its place in `slices`."""

    def __init__(
        self,
        members: Mapping[str, Sequence[DestTensor]],
        slices: Mapping[str, ArenaSlice],
        make: Callable[[Sequence[DestTensor], Sequence[int]], _T],
    ) -> None:
        """Name tensors; `make` gets a tensor's destinations and their addresses."""
        self._members = members
        self._slices = slices
        self._make = make

    def __getitem__(self, name: str) -> _T:
        """Return a tensor at its place."""
        members = self._members[name]
        places = [self._slices.get(dest.name) for dest in members]
        return self._make(members, [_address(name, place) for place in places])

    def __iter__(self) -> Iterator[str]:
        """Go through all names."""
        return iter(self._members)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._members)


def vectors_of(plan: LoadPlan, slices: Mapping[str, ArenaSlice]) -> Mapping[str, Tensor]:
    """Return norm weights, biases and taps of convolutions by name; `slices` may grow."""
    members = {dest.name: [dest] for dest in plan.destinations if len(dest.shape) != 2}
    return PlacedTensors(members, slices, _vector)


def matrices_of(plan: LoadPlan, slices: Mapping[str, ArenaSlice]) -> Mapping[str, Weight]:
    """Return all other weights by name; destinations that have parts of the same rows are one. `slices` may grow."""
    return PlacedTensors(_matrices(plan), slices, _matrix)


def unplaced_matrices(plan: LoadPlan) -> dict[str, Weight]:
    """Return what `matrices_of` does before there is memory for them: all have the address 0."""
    return {name: _matrix(members, [0] * len(members)) for name, members in _matrices(plan).items()}


def _matrices(plan: LoadPlan) -> dict[str, list[DestTensor]]:
    members: dict[str, list[DestTensor]] = {}
    for dest in plan.destinations:
        if len(dest.shape) == 2:
            members.setdefault(dest.whole, []).append(dest)
    return members


def _address(name: str, place: ArenaSlice | None) -> int:
    assert place is not None, f"{name} has no memory yet"
    return place.address


def _vector(members: Sequence[DestTensor], addresses: Sequence[int]) -> Tensor:
    tensor = _tensor(members[0], addresses[0])
    assert isinstance(tensor, Tensor), "vectors are not quantised"
    return tensor


def _matrix(members: Sequence[DestTensor], addresses: Sequence[int]) -> Weight:
    tensors = [_tensor(dest, address) for dest, address in zip(members, addresses, strict=True)]
    if members[0].whole == members[0].name:
        return tensors[0]
    return MixedTensor(tuple(tensors))


def _tensor(dest: DestTensor, address: int) -> Tensor | QuantTensor:
    if isinstance(dest.dtype, DType):
        return Tensor(address, dest.shape, dest.dtype)
    return QuantTensor(address, dest.shape, dest.dtype)
