#!/usr/bin/env python3
"""The estimate for RDNA3, of llama.cpp's own kernels for prompts.

    rdna3_llama.py LIBRARY [--shape 43008x5376] [--chip 780M] [--tokens 512]

LIBRARY is a libggml-vulkan.so that still names its shaders (`nm` lists them, of binutils). Those that multiply by
K-quants are compiled by RADV as rdna3.py compiles ours, with the tiles that llama.cpp asks for on RDNA3, and put
through the same estimate: what the instructions of the main loop take for one product, by their rates, on all of the
chip's units. Tiles are those of llama.cpp's ggml-vulkan.cpp for AMD's GPUs with matrices (August and September 2026),
and those that pull requests 28611 and 27554 have in their place. What quantises activations for the kernels of dot
products, the sum over parts of K and all other operations are not counted.
"""

from __future__ import annotations

import argparse
import subprocess
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from command_line import matrix_shape, run_script
from rdna3 import CHIPS, Chip, choose_driver
from rdna3_code import hottest_loop
from rdna3_driver import Compiler

from unicorn_async.cli.options import count
from unicorn_async.errors import ConfigError
from unicorn_async.gpu.instance import Instance

LANES = 64
GGML_TYPES = {"Q4_K": 12, "Q5_K": 13, "Q6_K": 14}
BLOCK, BM, BN, BK, WM, WN, WMITER, TM, TN, TK, WARP, ALIGNED, TYPE, PAD = range(14)  # numbers of constants


@dataclass(frozen=True, slots=True)
class Variant:
    """A shader with a tile: of rows, of tokens, and of those a subgroup's."""

    name: str
    shader: str
    threads: int
    rows: int
    tokens: int
    own_rows: int
    own_tokens: int = 64

    @property
    def is_matrices(self) -> bool:
        """Whether it goes by matrices of halves, not by dot products of int8."""
        return "_cm1" in self.shader

    def constants(self, kind: str) -> dict[int, int]:
        """Return its constants for a type of weights."""
        sizes = {
            BLOCK: self.threads,
            BM: self.rows,
            BN: self.tokens,
            WM: self.own_rows,
            WN: self.own_tokens,
            WARP: LANES,
        }
        if self.is_matrices:
            return {**sizes, BK: 32, WMITER: 2, TM: 16, TN: 16, TK: 16, ALIGNED: 1, TYPE: GGML_TYPES[kind], PAD: 4}
        return {**sizes, WMITER: 1, TM: 4, TN: 2}


VARIANTS = (
    Variant("matrices", "matmul_quant_f32_cm1", 256, 128, 128, 64),
    Variant("matrices, half of the rows", "matmul_quant_f32_cm1", 256, 64, 128, 32),
    Variant("dot products", "matmul_{}_q8_1", 256, 128, 128, 64),
    Variant("dot products, twice the tokens", "matmul_{}_q8_1", 512, 128, 256, 64),
)


def shaders(library: Path) -> dict[str, bytes]:
    """Return a library's shaders by their names.

    Raises:
        ConfigError: it names none.
    """
    try:
        listed = subprocess.run(["nm", "-S", str(library)], capture_output=True, text=True, check=True).stdout
        held = library.read_bytes()
    except (OSError, subprocess.CalledProcessError) as exc:
        raise ConfigError(f"{library}: can't be read with nm: {exc}") from exc
    words = [line.split() for line in listed.splitlines()]
    found = {
        name.removesuffix("_data"): held[int(place, 16) :][: int(size, 16)]  # read-only data lies where it is loaded
        for place, size, _, name in (line for line in words if len(line) == 4)
        if name.startswith("matmul_") and name.endswith("_data")
    }
    if not found:
        raise ConfigError(f"{library}: names no shaders that multiply matrices")
    return found


def line(compiler: Compiler, chip: Chip, kind: str, variant: Variant, code: bytes, macs: int) -> str:
    """Compile, estimate and return a row of the table."""
    found = compiler.compile_code(variant.shader, code, variant.constants(kind), LANES, variant.threads)
    loop, held = hottest_loop(found.code), found.statistics
    assert loop is not None
    microseconds = macs / loop.macs * loop.cycles() / chip.compute_units / chip.ghz / 1e3
    waves = chip.waves(held, variant.threads)
    return (
        f"| {kind} | {variant.name} | {held.vgprs} of {LANES} lanes | {held.scratch_bytes} | {held.lds_bytes:,}"
        f" | {waves} | {microseconds:,.0f} |"
    )


def main() -> None:
    """Compile, and print."""
    parser = argparse.ArgumentParser(description="The estimate for RDNA3, of llama.cpp's own kernels for prompts.")
    parser.add_argument("library", type=Path, metavar="LIBRARY")
    parser.add_argument("--shape", type=matrix_shape, default=(43_008, 5376), metavar="ROWSxCOLUMNS")
    parser.add_argument("--chip", choices=list(CHIPS), default="780M")
    parser.add_argument("--tokens", type=count, default=512, metavar="N")
    options = parser.parse_args()
    known, macs = shaders(options.library), options.shape[0] * options.shape[1] * options.tokens
    choose_driver()
    print("| type | kernel | VGPRs | scratch | LDS | waves on a SIMD | code, µs |\n|---|---|---|---|---|---|---|")
    with Instance.create() as instance, closing(Compiler(instance)) as compiler:
        for kind in GGML_TYPES:
            for variant in VARIANTS:
                code = known.get(variant.shader.format(kind.lower()))
                if code is None:
                    raise ConfigError(f"{options.library}: has no {variant.shader.format(kind.lower())}")
                print(line(compiler, CHIPS[options.chip], kind, variant, code, macs), flush=True)


if __name__ == "__main__":
    run_script(main)
