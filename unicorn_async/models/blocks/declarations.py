"""What blocks declare: weights, norms, state, and how what they leave is added to the residual stream. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from unicorn_async.weights.placement import MemoryGroup
from unicorn_async.weights.rules import WeightKind


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One tensor of a checkpoint, named as in a layer: `name` on disk, `dest` on the device.

    Its rows go to row `row_offset` of `dest`, which several share that one dispatch reads. Matrices and tables are
    what adapters may change. `group` says what memory it is given.
    """

    name: str
    shape: tuple[int, ...]
    dest: str
    kind: WeightKind
    group: MemoryGroup
    row_offset: int = 0


@dataclass(frozen=True, slots=True)
class Paged:
    """State of a sequence that grows with it: keys and values of a layer, in blocks of the cache.

    `window` is what a query sees of them, in tokens; 0 = all.
    """

    window: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Residue:
    """What a block leaves in `branch` for the next one to add to the stream: norm(branch), or branch itself.

    `norm` is the destination of the norm's weight; "" = none.
    """

    norm: str = ""

    def behind(self, prefix: str) -> Residue:
        """Return it with the norm's full name."""
        return Residue(prefix + self.norm) if self.norm else self


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm over `size` elements: `name` is its weight's on disk, `dest` on the device, both as in the layer.

    With `plus_one` weights count from 1.
    """

    name: str
    dest: str
    size: int
    eps: float
    plus_one: bool = False

    @property
    def weight(self) -> WeightSpec:
        """Its weight, (size) f32."""
        return vector(self.name, self.dest, self.size)


def vector(name: str, dest: str, size: int, row_offset: int = 0) -> WeightSpec:
    """Return a norm's weight, or a part of a bias: f32 on the device."""
    return WeightSpec(name, (size,), dest, WeightKind.VECTOR, MemoryGroup.NORMS, row_offset)
