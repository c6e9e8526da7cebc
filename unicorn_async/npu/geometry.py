"""The chips, and how keys, values, queries and results lie in memory for the kernels of a chip.

The same sizes are in npu/kernels/tile_shape.h. Everything is cut for the matrix unit: a tile of K is M keys × 8
dimensions, one of V is M dimensions × 8 keys, and queries and results are transposed, N rows wide.
"""

from __future__ import annotations

from dataclasses import dataclass

from unicorn_async.errors import UnsupportedModelError
from unicorn_async.npu.precision import Products

HEAD_DIMS = (64, 128, 256)
CORE_BUFFER_BYTES = 8192  # of a core's stream: parameters, queries, or a chunk of keys and values
CORES_PER_TEAM = 2  # that get the same buffers, and work on other rows each
PARAMETER_WORDS = 16  # of an item, before the bounds of its rows
TILE_M = 4
TILE_DEPTH = 8
BF16_BYTES = 2
F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Chip:
    """One generation of the NPU.

    The four cores of a column are two teams, because the interface to memory has two reading channels there: each
    team has a stream of its own, which the column's memory tile broadcasts to both of its cores.
    """

    name: str
    pci_device: str  # of AMD's vendor id 1022
    aie_arch: int  # AIE_ARCH of the kernels: 20 is AIE2, 21 is AIE2P
    target: str  # the compiler's triple
    columns: int
    tile_n: int  # columns of the matrix unit's bf16 result, whose products npu2 emulates
    max_contexts: int
    products: tuple[Products, ...]  # that kernels can be built with

    @property
    def num_teams(self) -> int:
        """Teams of cores, each on an item at a time."""
        return 2 * self.columns

    @property
    def num_cores(self) -> int:
        """Cores that work."""
        return CORES_PER_TEAM * self.num_teams

    @property
    def tile_lanes(self) -> int:
        """Elements of a result tile."""
        return TILE_M * self.tile_n


NPU1 = Chip("npu1", "0x1502", 20, "aie2-none-unknown-elf", 4, 4, 6, (Products.BF16,))
NPU2 = Chip("npu2", "0x17f0", 21, "aie2p-none-unknown-elf", 8, 8, 16, (Products.BF16, Products.BFP16))
CHIPS = (NPU1, NPU2)


def chip_named(name: str) -> Chip | None:
    """Return the chip of this name."""
    return next((chip for chip in CHIPS if chip.name == name), None)


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """How one kv head's keys and values, and an item's queries and results, lie in memory. All sizes are exact.

    A layer's cache is (num_kv_heads, blocks, chunks of a block, K then V) bf16:
    K of a chunk is (keys / 4, head_dim / 8, 4 keys, 8 dims), V is (keys / 8, head_dim / 4, 4 dims, 8 keys).
    Queries are (strips, head_dim, N) bf16, results (strips, head_dim, N) f32; row r of an item is in strip r // N, and
    strip s is that of core s % CORES_PER_TEAM of a team.
    Raises UnsupportedModelError for a head_dim without kernels.
    """

    chip: Chip
    head_dim: int

    def __post_init__(self) -> None:
        if self.head_dim not in HEAD_DIMS:
            raise UnsupportedModelError(
                f"attention on the NPU: head_dim: expected one of {', '.join(map(str, HEAD_DIMS))}, got {self.head_dim}"
            )

    @property
    def chunk_keys(self) -> int:
        """Keys of a chunk; with their values they fill a buffer."""
        return CORE_BUFFER_BYTES // (2 * BF16_BYTES * self.head_dim)

    @property
    def rows(self) -> int:
        """Pairs of a query and a head that an item holds; their queries fill a buffer for each core of a team."""
        return CORES_PER_TEAM * CORE_BUFFER_BYTES // (BF16_BYTES * self.head_dim)

    @property
    def num_strips(self) -> int:
        """Groups of N rows of an item."""
        return self.rows // self.chip.tile_n

    @property
    def core_strips(self) -> int:
        """Those of one core."""
        return self.num_strips // CORES_PER_TEAM

    @property
    def strip_bytes(self) -> int:
        """Bytes of a strip's results."""
        return self.head_dim * self.chip.tile_n * F32_BYTES

    @property
    def result_bytes(self) -> int:
        """Bytes of a full item's results."""
        return self.num_strips * self.strip_bytes

    @property
    def key_tile_shape(self) -> tuple[int, int, int, int]:
        """Shape of a chunk's K: (key tiles, dim steps, M keys, 8 dims)."""
        return (self.chunk_keys // TILE_M, self.head_dim // TILE_DEPTH, TILE_M, TILE_DEPTH)

    @property
    def value_tile_shape(self) -> tuple[int, int, int, int]:
        """Shape of a chunk's V: (key steps, dim tiles, M dims, 8 keys)."""
        return (self.chunk_keys // TILE_DEPTH, self.head_dim // TILE_M, TILE_M, TILE_DEPTH)
