"""Intermediate results of a step in device memory.

Most are scratch within a layer, reused by every layer and every step. What a step keeps from layer to layer is its
own, so that steps in flight may take turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from unicorn_async.ops.linear_scratch import LinearScratch
from unicorn_async.tensor import DType, Tensor, aligned

if TYPE_CHECKING:
    from collections.abc import Mapping


class Widths(Protocol):
    """What a model says of its intermediate results: columns by name, of those of tokens and of those of logits."""

    @property
    def workspace(self) -> Mapping[str, int]: ...

    @property
    def head_workspace(self) -> Mapping[str, int]: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def carried_size(self) -> int: ...

    @property
    def widest_input(self) -> int: ...


def activation_bytes(model: Widths, max_tokens: int, max_logit_rows: int, num_frames: int) -> Mapping[str, int]:
    """Return the size of each intermediate result, all f32 but `scratch`, in bytes; a multiple of 256 each.

    `residual_names` says which are those of a frame. `touched` is the sink of `touch_pages`.
    """
    columns = dict(model.workspace)
    for frame in range(num_frames):
        columns |= zip(residual_names(frame), residual_columns(model), strict=True)
    sizes = {name: 4 * max_tokens * count for name, count in columns.items()}
    sizes |= {name: 4 * max_logit_rows * count for name, count in model.head_workspace.items()}
    sizes["touched"] = 4
    sizes["scratch"] = LinearScratch.size(max(max_tokens, max_logit_rows), model.widest_input)
    return {name: aligned(size) for name, size in sizes.items()}


def residual_bytes(model: Widths, max_tokens: int) -> int:
    """Return the size of what one step keeps between its layers, in bytes."""
    return sum(aligned(4 * max_tokens * columns) for columns in residual_columns(model))


def residual_columns(model: Widths) -> tuple[int, int]:
    """Return how many elements of a token are in `hidden`, and in `branch`: behind it is what layers carry."""
    return model.hidden_size, model.hidden_size + model.carried_size


def residual_names(frame: int) -> tuple[str, str]:
    """Return the names of a frame's `hidden` and `branch`."""
    return f"hidden.{frame}", f"branch.{frame}"


@dataclass(frozen=True, slots=True)
class Residual:
    """What one step keeps between its layers: addresses of (tokens, hidden_size) f32, with room for the largest step.

    The next layer begins with hidden + branch. Behind the step's rows of `branch` are (tokens, carried_size) f32.
    """

    hidden: int
    branch: int


@dataclass(frozen=True, slots=True)
class Activations:
    """Addresses of what steps use within a layer or the head; each has room for the largest step."""

    address: Mapping[str, int]
    scratch: LinearScratch

    @classmethod
    def at(cls, address: Mapping[str, int], model: Widths, max_tokens: int, max_logit_rows: int) -> Activations:
        """Take the places that memory of `activation_bytes` was found at."""
        rows = max(max_tokens, max_logit_rows)
        return cls(address, LinearScratch.at(address["scratch"], rows, model.widest_input))

    def rows(self, name: str, num_rows: int, columns: int) -> Tensor:
        """Return the first rows of one result as (num_rows, columns) f32."""
        return Tensor(self.address[name], (num_rows, columns), DType.F32)
