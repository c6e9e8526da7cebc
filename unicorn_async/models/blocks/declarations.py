"""What blocks declare: weights, norms, state, and how what they leave is added to the residual stream. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind

if TYPE_CHECKING:
    from unicorn_async.weights.row_order import HeadOrder, RowRun


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One tensor of a checkpoint, named as in a layer: `name` on disk, `dest` on the device.

    Its rows go to row `row_offset` of `dest`, which several share that one dispatch reads. Matrices and tables are
    what adapters may change. `group` says what memory it is given. With a `head_order` the rows of heads lie in that
    order on disk, with `runs` all its rows as these say. A `stacked` one is so many matrices there, of as many rows
    each, in a dimension of its own. Of one that `is_transposed` dense ones there have
    rows for columns. One that `is_gathered` may have its columns in another order, see `BlockRecorder.linear`. With
    `file_rows` it is the part of a matrix of so many rows that `runs` say.
    """

    name: str
    shape: tuple[int, ...]
    dest: str
    kind: WeightKind
    group: MemoryGroup
    row_offset: int = 0
    head_order: HeadOrder | None = None
    stacked: int = 1
    runs: tuple[RowRun, ...] = ()
    is_transposed: bool = False
    is_gathered: bool = False
    file_rows: int = 0


@dataclass(frozen=True, slots=True)
class Paged:
    """State of a sequence that grows with it: keys and values of a layer, in blocks of the cache.

    `window` is what a query sees of them, in tokens; 0 = all. With a `latent_dim` there are keys alone, whose first so
    many elements are the values.
    """

    window: int
    num_kv_heads: int
    head_dim: int
    latent_dim: int = 0

    @property
    def num_parts(self) -> int:
        """Tensors of the cache that it takes: keys, and values if these are kept."""
        return 1 if self.latent_dim else 2


@dataclass(frozen=True, slots=True)
class Fixed:
    """State of a sequence that does not grow with it: `nbytes` of each layer that has such a block.

    It lies by the sequence's state index, and has what was there before when a sequence begins.
    """

    nbytes: int


@dataclass(frozen=True, slots=True)
class Residue:
    """What a block leaves in `branch` for the next one to add to the stream: norm(branch), or branch itself.

    `norm` is the destination of the norm's weight; "" = none. `eps` is that norm's. What is added is multiplied by
    `scale`, and the stream then by the one element at the destination `factor`; "" = none.
    """

    norm: str = ""
    eps: float = 0.0
    scale: float = 1.0
    factor: str = ""

    @classmethod
    def of(cls, norm: Norm | None, scale: float = 1.0, factor: WeightSpec | None = None) -> Residue:
        """Return the residue of a block with this norm behind it, or none."""
        found = cls(scale=scale) if norm is None else cls(norm.dest, norm.eps, scale)
        return found if factor is None else replace(found, factor=factor.dest)

    def behind(self, prefix: str) -> Residue:
        """Return it with full names."""
        norm, factor = (prefix + name if name else "" for name in (self.norm, self.factor))
        return replace(self, norm=norm, factor=factor)


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm over `size` elements: `name` is its weight's on disk, `dest` on the device, both as in the layer.

    With `plus_one` weights count from 1. A `centred` one is LayerNorm, whose bias has the name `bias`; "" = none.
    """

    name: str
    dest: str
    size: int
    eps: float
    plus_one: bool = False
    centred: bool = False
    bias: str = ""

    @property
    def rule(self) -> tuple[float, bool, bool]:
        """How it counts, whatever its weight: one dispatch applies a norm behind a block and the next one in front."""
        return self.eps, self.plus_one, self.centred

    @property
    def weight(self) -> WeightSpec:
        """Its weight, (size) f32."""
        return vector(self.name, self.dest, self.size)

    @property
    def bias_dest(self) -> str:
        """The destination of its bias; "" = it has none."""
        return f"{self.dest}_bias" if self.bias else ""

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """Its weight, and its bias if it has one."""
        return (self.weight, *([vector(self.bias, self.bias_dest, self.size)] if self.bias else []))


def vector(name: str, dest: str, size: int, row_offset: int = 0) -> WeightSpec:
    """Return a norm's weight, or a part of a bias: f32 on the device."""
    return WeightSpec(name, (size,), dest, WeightKind.VECTOR, MemoryGroup.NORMS, row_offset)
