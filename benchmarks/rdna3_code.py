"""What RDNA3 code costs by its instructions: counts in loops, and cycles by published rates. Pure: needs no driver.

Rates are those of AMD's public documents of the instruction set (RDNA3 ISA, 2023; GPUOpen on WMMA): a SIMD32 does an
instruction of the vector unit for 32 lanes each cycle, a transcendental one in four, a product of 32 × 32 bits in four,
and a matrix multiply-add of 16×16×16 halves or int8 in 32. A compute unit has two SIMDs, reads and writes 128 bytes of
LDS and 64 of its vector cache each cycle.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LANES = 32
SIMDS = 2  # of a compute unit
LDS_BYTES, CACHE_BYTES = 128, 64  # of a compute unit and cycle
_LABEL = re.compile(r"^(BB\d+):")
_WIDTH = re.compile(r"_[bu](8|16|32|64|96|128)(?:_|$)")
_MATRIX_CYCLES = {"f16": 32, "bf16": 32, "iu8": 32, "iu4": 16}
_MATRIX_MACS = 16 * 16 * 16
_SLOW = (
    "v_exp",
    "v_log",
    "v_rcp",
    "v_rsq",
    "v_sqrt",
    "v_sin",
    "v_cos",
    "v_mul_lo_u32",
    "v_mul_hi",
    "v_mad_u64",
    "v_mad_i64",
)


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop's instructions for one turn of one wave, by what they are."""

    vector: int = 0
    matrix: int = 0
    dots: int = 0  # of the vector ones, those that add products of four int8
    loads: int = 0  # from memory
    lds: int = 0
    scratch: int = 0
    macs: int = (
        0  # multiply-adds of the product, of 32 lanes: matrices' where there are such, else dot products', else all
    )
    vector_cycles: int = 0  # of a SIMD, matrices included
    lds_bytes: int = 0
    load_bytes: int = 0

    def cycles(self) -> float:
        """Cycles of a compute unit for a turn, at best: the longest of what its parts take."""
        return max(self.vector_cycles / SIMDS, self.lds_bytes / LDS_BYTES, self.load_bytes / CACHE_BYTES)


@cache  # products of many shapes share a pipeline
def hottest_loop(code: str) -> Loop | None:
    """Return the loop with the most multiply-adds outside of its inner loops, of which a turn each is counted with it.

    They are those of matrices where the code has such, else those of dot products, else all. Code that does most of
    them outside of loops counts as a loop of one turn; None where there are none. `code` is a disassembly with labels
    of blocks, as RADV prints it.
    """
    lines, loops = _loops(code)
    spans = [(0, len(lines)), *loops]
    outside = [
        counted(line for at, line in enumerate(lines[first:end], first) if not _is_inside(at, (first, end), spans))
        for first, end in spans
    ]
    own = next((sums for sums in _multiply_adds(outside) if any(sums)), None)
    if own is None:
        return None
    first, end = spans[own.index(max(own))]
    return counted(lines[first:end])


def _multiply_adds(loops: Sequence[Loop]) -> Iterable[list[int]]:
    yield [loop.matrix for loop in loops]
    yield [loop.dots for loop in loops]
    yield [loop.macs for loop in loops]


def _is_inside(at: int, loop: tuple[int, int], spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a line belongs to a loop inside of another."""
    return any(loop[0] <= first <= at < end <= loop[1] for first, end in spans if (first, end) != loop)


def _loops(code: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the instructions, and where loops begin and end: from a block to the last branch back to it."""
    blocks: dict[str, int] = {}
    lines: list[str] = []
    spans: dict[int, int] = {}
    for line in code.splitlines():
        label = _LABEL.match(line)
        if label is not None:
            blocks[label[1]] = len(lines)
            continue
        words = line.split(";")[0].split()
        if not words or not words[0].startswith(("s_", "v_", "ds_", "global_", "buffer_", "scratch_", "flat_")):
            continue
        lines.append(" ".join(words))
        if words[0].startswith(("s_branch", "s_cbranch")) and words[-1] in blocks:
            spans[blocks[words[-1]]] = len(lines)
    return lines, sorted(spans.items())


def counted(instructions: Iterable[str]) -> Loop:
    """Count a loop's instructions, and what they take.

    Beside matrices, and beside dot products, other multiply-adds scale what these make: they take time alone.
    """
    sums: Counter[str] = Counter()
    for instruction in instructions:
        name = instruction.split()[0]
        if name.startswith("v_wmma"):
            sums.update(matrix=1, vector_cycles=_MATRIX_CYCLES[_matrix_type(name)])
        elif name.startswith("v_"):
            slow = 4 if name.startswith(_SLOW) else 1
            is_dot = "dot4" in name
            kind = "dot_macs" if is_dot else "other_macs"
            sums.update({"vector": 1, "dots": int(is_dot), kind: _macs(instruction) * LANES, "vector_cycles": slow})
        elif name.startswith("ds_"):
            sums.update(lds=1, lds_bytes=_width(name) * LANES)
        elif name.startswith("scratch_"):
            sums.update(scratch=1, load_bytes=_width(name) * LANES)
        elif name.startswith(("global_", "buffer_", "flat_")):
            sums.update(loads=1, load_bytes=_width(name) * LANES)
    dots, others = sums.pop("dot_macs", 0), sums.pop("other_macs", 0)
    return Loop(**sums, macs=sums["matrix"] * _MATRIX_MACS or dots or others)


def _matrix_type(name: str) -> str:
    return next(kind for kind in ("iu8", "iu4", "bf16", "f16") if name.endswith(f"_{kind}") or f"_{kind}_" in name)


def _macs(instruction: str) -> int:
    """Multiply-adds of a lane; an instruction may be two, side by side."""
    return sum(
        4 if "dot4" in name else 2 if "dot2" in name or name.startswith("v_pk_fma") else 1
        for name in re.findall(r"v_\w*(?:dot[24]|fma)\w*", instruction)
    )


def _width(name: str) -> int:
    """Bytes of a lane."""
    width = _WIDTH.search(name)
    return (2 if "2addr" in name else 1) * (int(width[1]) // 8 if width is not None else 4)
