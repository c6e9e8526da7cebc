#!/usr/bin/env python3
"""Write the codebooks of GGUF's IQ1, IQ2 and IQ3 types for the kernels that lay them out: shaders/relayout/grids.

The numbers are those of the PyPI package gguf. An entry is eight or four places of two or three bits in a table of
magnitudes; it has 16 bits here, and four are in a word. A word is long and the array no constant because of software
drivers: these write it in each invocation, a constant once for each use.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from gguf import quants

if TYPE_CHECKING:
    from numpy.typing import NDArray

GRIDS = Path(__file__).resolve().parent.parent / "shaders" / "relayout" / "grids"
SOURCES = {
    "iq1": quants.IQ1_S,
    "iq2_xxs": quants.IQ2_XXS,
    "iq2_xs": quants.IQ2_XS,
    "iq2_s": quants.IQ2_S,
    "iq3_xxs": quants.IQ3_XXS,
    "iq3_s": quants.IQ3_S,
}
WORDS_PER_LINE = 5


def codebook(name: str) -> NDArray[np.int64]:
    """Return a codebook's entries, (entries, elements) places in the table of magnitudes."""
    source = SOURCES[name]
    source.init_grid()
    return np.searchsorted(source.grid_map, np.reshape(source.grid, source.grid_shape))


def glsl(name: str) -> str:
    """Return the file of a codebook."""
    entries = codebook(name)
    count, elements = entries.shape
    bits = 16 // elements if elements == 8 else 3
    packed = (entries << (bits * np.arange(elements))).sum(axis=1)
    words = [f"0x{word:016x}ul" for word in packed.astype("<u2").view("<u8").tolist()]
    lines = [", ".join(words[i : i + WORDS_PER_LINE]) for i in range(0, len(words), WORDS_PER_LINE)]
    body = ",\n    ".join(lines)
    return (
        f"// Made by tools/make_grids.py: {count} entries of {elements} elements.\n"
        f"const uint GRID_BITS = {bits};\n"
        f"uint64_t GRID[{len(words)}] = uint64_t[{len(words)}](\n    {body});\n"
    )


def main() -> int:
    """Write all files."""
    GRIDS.mkdir(exist_ok=True)
    for name in SOURCES:
        (GRIDS / f"{name}.glsl").write_text(glsl(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
