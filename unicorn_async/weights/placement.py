"""Which part of a model lies in which kind of memory, by what is read most for a token. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING

from unicorn_async.errors import OutOfMemoryError
from unicorn_async.gpu.arena import block_nbytes
from unicorn_async.gpu.budget import HeapKind
from unicorn_async.tensor import DType
from unicorn_async.weights.chunk import Transform

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unicorn_async.gpu.budget import MemoryBudget
    from unicorn_async.weights.chunk import PlannedChunk
    from unicorn_async.weights.plan import LoadPlan

BLOCK_BYTES = 64 << 20  # short allocations: drivers hold submissions up for as long as one takes
_MOST_BLOCKS = 1024  # about: each costs some time, and drivers allow a few thousand allocations


class MemoryGroup(Enum):
    """What a piece of memory is for, in the order in which VRAM is given away.

    Workspace, states and cache are read and written many times a token, weights are read once, of experts a few,
    and of a table of embeddings a token reads one row: that goes to GTT before it takes VRAM from anything else.
    """

    WORKSPACE = "workspace"
    STATE = "sequence state"
    KV_CACHE = "KV cache"
    HEAD = "output head"
    NORMS = "norms and biases"
    ATTENTION = "attention"
    FFN = "FFN"
    EXPERTS = "experts"
    EMBEDDINGS = "embeddings"


_VRAM_ORDER = tuple(MemoryGroup)
_SHOWN_ORDER = (
    MemoryGroup.EMBEDDINGS,
    MemoryGroup.HEAD,
    MemoryGroup.NORMS,
    MemoryGroup.ATTENTION,
    MemoryGroup.FFN,
    MemoryGroup.EXPERTS,
    MemoryGroup.KV_CACHE,
    MemoryGroup.STATE,
    MemoryGroup.WORKSPACE,
)


@dataclass(frozen=True, slots=True)
class Claim:
    """Memory that a model needs in one piece; `transform` is what is done to weights, or a cache's type."""

    name: str
    nbytes: int
    group: MemoryGroup
    layer: int
    transform: str = ""


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """One allocation: the claims that lie in it, one after the other."""

    heap: HeapKind
    claims: tuple[Claim, ...]

    @property
    def nbytes(self) -> int:
        """Size, with the padding between the claims."""
        return block_nbytes([claim.nbytes for claim in self.claims])


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """Claims of one group that lie in one kind of memory; `layers` is the first and the last, None without layers."""

    group: MemoryGroup
    layers: tuple[int, int] | None
    nbytes: int
    heap: HeapKind
    transforms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where everything lies: `blocks` in the order of allocation, `grown` in theirs: pieces of the KV cache, beside."""

    room: MemoryBudget
    blocks: tuple[PlannedBlock, ...]
    grown: tuple[PlannedBlock, ...] = ()

    def nbytes(self, heap: HeapKind) -> int:
        """Return what is planned in one kind of memory, in bytes."""
        return sum(block.nbytes for block in (*self.blocks, *self.grown) if block.heap is heap)

    def names(self, group: MemoryGroup) -> list[str]:
        """Return the names of a group's claims in `blocks`."""
        return [claim.name for block in self.blocks for claim in block.claims if claim.group is group]

    @property
    def total_bytes(self) -> int:
        """What is planned in all."""
        return sum(block.nbytes for block in (*self.blocks, *self.grown))

    def rows(self) -> list[PlacementRow]:
        """Return the table of groups; layers that follow each other in the same memory are one row."""
        placed = [(claim, block.heap) for block in (*self.blocks, *self.grown) for claim in block.claims]
        placed.sort(key=lambda item: (_SHOWN_ORDER.index(item[0].group), item[0].layer, item[1] is HeapKind.GTT))
        rows: list[PlacementRow] = []
        for (group, _), same in groupby(placed, key=lambda item: (item[0].group, item[1])):
            members = list(same)
            claims = [claim for claim, _ in members]
            layered = group in (MemoryGroup.ATTENTION, MemoryGroup.FFN, MemoryGroup.EXPERTS)
            rows.append(
                PlacementRow(
                    group,
                    (claims[0].layer, claims[-1].layer) if layered else None,
                    sum(claim.nbytes for claim in claims),
                    members[0][1],
                    tuple(dict.fromkeys(claim.transform for claim in claims if claim.transform)),
                )
            )
        return rows


def weight_claims(plan: LoadPlan, groups: Mapping[str, MemoryGroup]) -> tuple[Claim, ...]:
    """Return what a plan's destinations claim, by their names; `groups` goes by the name of the whole tensor."""
    texts: dict[str, dict[str, None]] = {}
    for chunk in plan.chunks:
        texts.setdefault(chunk.dest, {})[_transform_text(chunk)] = None
    return tuple(
        Claim(dest.name, dest.nbytes, groups[dest.whole], dest.layer, ", ".join(texts.get(dest.name, ())))
        for dest in plan.destinations
    )


def place(
    claims: Sequence[Claim], room: MemoryBudget, *, max_allocation: int, block_bytes: int = BLOCK_BYTES
) -> Placement:
    """Give each claim its memory, the groups in their order and each group from its first layer on.

    What has not fit into VRAM goes to GTT, and so do the layers of the group behind it while GTT has room, so that a
    group is cut once. A block has at most `block_bytes`, or the thousandth part of a very large model, unless a single
    claim has more; pieces of the KV cache have a block each.

    Raises:
        OutOfMemoryError: a claim fits nowhere, or into no single allocation.
    """
    left = {heap: room.of(heap) for heap in HeapKind}
    total = room.total
    heaps: dict[str, HeapKind] = {}
    spilled: set[MemoryGroup] = set() if room.gtt == 0 else {MemoryGroup.EMBEDDINGS}
    in_order = sorted(claims, key=lambda claim: (_is_later(claim), _VRAM_ORDER.index(claim.group), claim.layer))
    for claim in in_order:
        nbytes = block_nbytes([claim.nbytes])
        if nbytes > max_allocation:
            raise OutOfMemoryError(
                f"{claim.name}: {nbytes:,} bytes needed in one piece, the device allocates {max_allocation:,} at most"
            )
        first, second = HeapKind.VRAM, HeapKind.GTT
        if claim.group in spilled:
            first, second = second, first
        heap = first if nbytes <= left[first] else second
        if nbytes > min(left[heap], total):
            raise OutOfMemoryError(
                f"{claim.name}: {nbytes:,} bytes needed, {min(left[HeapKind.VRAM], total):,} left of VRAM and "
                f"{min(left[HeapKind.GTT], total):,} of GTT"
            )
        if heap is HeapKind.GTT:
            spilled.add(claim.group)
        heaps[claim.name] = heap
        left[heap] -= nbytes
        total -= nbytes
    block_bytes = max(block_bytes, block_nbytes([claim.nbytes for claim in claims]) // _MOST_BLOCKS)
    grown = tuple(PlannedBlock(heaps[claim.name], (claim,)) for claim in claims if claim.group is MemoryGroup.KV_CACHE)
    others = (claim for claim in claims if claim.group is not MemoryGroup.KV_CACHE)
    return Placement(room, tuple(_blocks(others, heaps, min(block_bytes, max_allocation))), grown)


def _is_later(claim: Claim) -> bool:
    return claim.group is not MemoryGroup.EMBEDDINGS


def _blocks(claims: Iterable[Claim], heaps: Mapping[str, HeapKind], block_bytes: int) -> list[PlannedBlock]:
    """Fill blocks of each heap in the order of the claims, which is that of the blocks' first ones, too.

    So what is loaded first has memory first, wherever it lies.
    """
    blocks: list[tuple[HeapKind, list[Claim]]] = []
    filling: dict[HeapKind, tuple[list[Claim], int]] = {}  # a heap's last block, and its bytes
    for claim in claims:
        heap, nbytes = heaps[claim.name], block_nbytes([claim.nbytes])
        block, used = filling.get(heap, ([], 0))
        if block and used + nbytes > block_bytes:
            block, used = [], 0
        if not block:
            blocks.append((heap, block))
        block.append(claim)
        filling[heap] = (block, used + nbytes)
    return [PlannedBlock(heap, tuple(block)) for heap, block in blocks]


def _transform_text(chunk: PlannedChunk) -> str:
    source, dest = chunk.source_dtype.value, chunk.dest_dtype.value
    if chunk.transform is Transform.COPY:
        return f"copy {dest}"
    if chunk.transform is Transform.RELAYOUT:
        return f"re-layout {dest}"
    if chunk.transform is Transform.TRANSPOSE:
        return f"transpose {source}"
    text = f"{source}→{dest}" if isinstance(chunk.dest_dtype, DType) else f"quantise {source}→{dest}"
    return f"LoRA, {text}" if chunk.transform is Transform.BLEND else text
