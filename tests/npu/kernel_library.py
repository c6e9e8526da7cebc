"""The kernels' own C++, built by g++ behind the host's stand-in for AMD's vector API."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unicorn_async.npu.geometry import CORES_PER_TEAM
from unicorn_async.npu.precision import Products
from unicorn_async.npu.tile_budget import COUNTS_BYTES, state_bytes
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unicorn_async.npu.geometry import HeadLayout

FLAGS = ["-std=c++20", "-O2", "-ffp-contract=off", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]


def defines_of(products: Products) -> tuple[str, ...]:
    """Return what a build with these products defines."""
    return ("AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16",) if products is Products.BFP16 else ()


def build_kernels(layout: HeadLayout, folder: Path, *, defines: tuple[str, ...] = ()) -> Path:
    """Build the kernels for one layout, unless the same ones lie in `folder`."""
    npu = resource_dir("npu")
    sources = sorted([*npu.glob("kernels/*"), *npu.glob("host/**/*.*")])
    command = [
        "g++",
        *FLAGS,
        f"-I{npu / 'host'}",
        f"-DAIE_ARCH={layout.chip.aie_arch}",
        f"-DHEAD_DIM={layout.head_dim}",
        f"-DSTATE_BYTES={state_bytes(layout)}",
        *(f"-D{name}" for name in defines),
        *("-include", str(npu / "host/core.cc"), str(npu / "kernels/attention.cc")),  # the host's headers are read once
    ]
    digest = hashlib.sha256(repr(command).encode() + b"".join(path.read_bytes() for path in sources))
    library = folder / f"{digest.hexdigest()[:32]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as own:  # another process may build the same ones now
            built = Path(own) / library.name
            subprocess.run([*command, "-o", str(built)], check=True, capture_output=True, text=True)
            built.replace(library)
    return library


class FakeCore:
    """One core with its kernels and its memory, fed buffer by buffer as the design's loop does it.

    `place` is that in its team.

    `rounded_down` counts, kernel by kernel, the values that changed because it had not set the rounding.
    `tile_products` and `tile_cycles` count the matrix unit's.
    """

    def __init__(self, library: Path, layout: HeadLayout, place: int) -> None:
        self._place = place
        self._lib = ctypes.CDLL(str(library))
        self._layout = layout
        words = np.full(state_bytes(layout) // 4 + 16, -1, np.int32)  # what a core's memory has at first: anything
        self._memory = words[-words.ctypes.data % 64 // 4 :]
        self._counts = np.zeros(COUNTS_BYTES // 4, np.int32)
        self._expects = "parameters"
        for count in ("core_rounded_down", "core_tile_products", "core_tile_cycles"):
            getattr(self._lib, count).restype = ctypes.c_uint64
        self.tile_products = self.tile_cycles = 0
        self.strips: list[NDArray[np.float32]] = []
        self.rounded_down: Counter[str] = Counter()
        self.buffers_taken = 0

    @property
    def is_idle(self) -> bool:
        """Whether it is between two items."""
        return self._expects == "parameters"

    def feed(self, buffer: NDArray[np.uint8]) -> None:
        """Work on the next buffer; after an item's last one its strips are in `strips`."""
        self.buffers_taken += 1
        memory, data = _pointer(self._memory), _pointer(buffer)
        if self._expects == "parameters":
            self._call("attention_begin", data, memory, _pointer(self._counts), ctypes.c_int32(self._place))
            self._expects = "queries"
            return
        if self._expects == "queries":
            self._call("attention_queries", data, memory)
            self._counts[0] -= 1
            if not self._counts[0]:
                self._expects = "chunks"
        else:
            self._call("attention_chunk", data, memory)
            self._counts[1] -= 1
        if self._expects == "chunks" and not self._counts[1]:
            for _ in range(self._counts[2]):
                out = np.full(self._layout.strip_bytes // 4, np.nan, np.float32)
                self._call("attention_strip", memory, _pointer(out))
                self.strips.append(out)
            self._expects = "parameters"

    def _call(self, kernel: str, *arguments: ctypes.c_void_p | ctypes.c_int32) -> None:
        self._lib.core_default_rounding()
        products, cycles = self._lib.core_tile_products(), self._lib.core_tile_cycles()
        getattr(self._lib, kernel)(*arguments)
        self.tile_products += self._lib.core_tile_products() - products
        self.tile_cycles += self._lib.core_tile_cycles() - cycles
        self.rounded_down[kernel] += self._lib.core_rounded_down()


class FakeTeam:
    """The cores that get the same buffers; `strips` are their results, joined as the memory tile does it."""

    def __init__(self, library: Path, layout: HeadLayout) -> None:
        self.cores = [FakeCore(library, layout, place) for place in range(CORES_PER_TEAM)]
        self.strips: list[NDArray[np.float32]] = []
        self.buffers_taken = 0

    @property
    def is_idle(self) -> bool:
        """Whether all of its cores are between two items, and none has sent a strip that the others have not."""
        return all(core.is_idle and not core.strips for core in self.cores)

    def feed(self, buffer: NDArray[np.uint8]) -> None:
        """Have every core work on the next buffer."""
        self.buffers_taken += 1
        for core in self.cores:
            core.feed(buffer)
        while all(core.strips for core in self.cores):
            self.strips += [core.strips.pop(0) for core in self.cores]


def _pointer(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
