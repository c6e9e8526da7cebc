"""The interface of a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.models.block_recorder import BlockRecorder
    from unicorn_async.models.blocks.declarations import Fixed, Norm, Paged, Residue, WeightSpec


class Block(Protocol):
    """A part of a layer that reads the residual stream, and leaves what is to be added to it.

    Blocks are equal where they record the same dispatches over weights of the same types.
    """

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """Its tensors, in the order in which a first prompt needs them."""

    @property
    def norms(self) -> tuple[Norm, ...]:
        """Its norms of the residual stream, in front of it and behind it."""

    @property
    def workspace(self) -> Mapping[str, int]:
        """Elements a token, all f32, of each intermediate result; blocks share those of one name."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Its sizes that have to be multiples of 8 elements, by their keys in config.json."""

    @property
    def summary(self) -> str:
        """What people are told of it beside the sizes of the whole model; "" = nothing."""

    @property
    def state(self) -> Paged | Fixed | None:
        """What it keeps of a sequence from one step to the next."""

    @property
    def alike(self) -> Block:
        """It without what makes no difference to which kernels record it: two blocks that are alike take the same."""

    @property
    def residue(self) -> Residue:
        """How what it leaves is added."""

    def record(self, recorder: BlockRecorder) -> None:
        """Record its part of a step."""
