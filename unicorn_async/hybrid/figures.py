"""What the cost model goes by: rates of the GPU, the NPU and their memory, each with where it is from.

A figure is a range as long as nobody has measured it here, and one number once somebody has. docs/npu.md has the same
sources in its table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.npu.geometry import NPU1
from unicorn_async.npu.pace import CLOCK_HZ, LEAST_PUSH_CYCLES, MULTIPLY_ADDS_A_CYCLE, PUSH_CYCLES
from unicorn_async.npu.precision import Products

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.npu.geometry import Chip
    from unicorn_async.npu.measured import MeasuredRates

OPEN_XDNA = "https://github.com/Scottcjn/open-xdna"
CLOCKS_OF_GPUS = "https://computerbase.de/2024-07/ryzen-ai-9-hx-375-amd-macht-die-55-tops-apu-offiziell"
MATRIX_UNITS = "https://gpuopen.com/learn/wmma_on_rdna3/"
MEMORIES = {
    "npu1": "https://cputronic.com/cpu/amd-ryzen-7-7840u",
    "npu2": "https://smmave.it/hardware/amd-spinge-al-massimo-il-suo-ryzen-ai-max-300-potenza-e-ai-al-top/",
}
DRIVER = "https://github.com/amd/xdna-driver"
CHANNELS = "https://docs.amd.com/r/en-US/am020-versal-aie-ml/Array-Interface-DMA-Memory-Mapped-AXI4-Master-Interface"
NPU_ENGINE = "https://huggingface.co/FastFlowLM/LFM3-1.7B-NPU2"
TASKS = "cycles fitted to an npu1 by https://github.com/FIM43-Redeye/xdna-emu, of a clock that is a guess"
COUNTED = "a guess out of counts, and the matrix unit's most: docs/npu.md"

_AMD = 0x1002
_MULTIPLY_ADDS_OF_UNIT = 256  # of a compute unit and cycle: 512 operations in half precision
_MOST_CLOCK_HZ, _LEAST_CLOCK_HZ = 2.9e9, 2.6e9
# What llama.cpp was seen to reach on a 780M: Qwen2.5 7B in Q4_K_M, decoding one stream, and a prompt of 512 tokens. Of
# its file a token reads all but the table of embeddings; of a prompt only the last token goes through the head.
SEEN_DECODED_PER_S, SEEN_BYTES = 16.7, 4.369e9
SEEN_READ_PER_S, SEEN_MULTIPLY_ADDS = 302.0, 6.525e9
_SEEN_UNITS, _SEEN_CLOCK_HZ = 12, 2.7e9
_SHARE_IN_PROMPTS = (  # of a 780M's matrix units
    SEEN_READ_PER_S * SEEN_MULTIPLY_ADDS / (_SEEN_UNITS * _MULTIPLY_ADDS_OF_UNIT * _SEEN_CLOCK_HZ)
)
_BYTES_IN_DECODING = SEEN_DECODED_PER_S * SEEN_BYTES  # of a 780M's memory, a second
_MEMORY = {"npu1": 120e9, "npu2": 136.5e9}  # 128 bits of LPDDR5X, at 7500 and 8533 MT/s
_WIDE_MEMORY = 273e9  # 256 bits of LPDDR5X at 8533 MT/s
_WIDE_UNITS = 17  # compute units of a GPU, from which on its chip has the wide memory
_NPU_CLOCKS_HZ = {"npu1": (0.8e9, 1.6e9), "npu2": (0.792e9, 1.8e9)}
_CHANNEL_BYTES = 8  # of a column and cycle: two reading channels of four bytes
_NPU_BYTES = (36e9, 46e9)  # as runs of others imply
# Of a core's matrix unit, a cycle: a whole product in bfp16; the least is `pace`'s guess.
_MOST_MULTIPLY_ADDS = {Products.BF16: 128, Products.BFP16: 512}
_DISPATCH_S = (120.7e-6, 135.9e-6)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number between `low` and `high`, in `unit`s that are shown times `scale`; `source` says where it is from."""

    name: str
    low: float
    high: float
    source: str
    unit: str = ""
    scale: float = 1.0
    is_measured: bool = False

    def text(self) -> str:
        """Return it for people, with its source."""
        low, high = (f"{value * self.scale:.4g}" for value in (self.low, self.high))
        return f"{self.name} {low if low == high else f'{low} to {high}'} {self.unit} ({self.source})"

    def to_json(self) -> dict[str, object]:
        """Return it as JSON values, in bytes, multiply-adds and seconds."""
        return {
            "name": self.name,
            "low": self.low,
            "high": self.high,
            "source": self.source,
            "measured": self.is_measured,
        }


@dataclass(frozen=True, slots=True)
class NpuFigures:
    """What an NPU reads a second, multiply-adds a second with all its cores, and takes to begin a run, and a task."""

    bytes_per_s: Figure
    multiply_adds_per_s: Figure
    dispatch_s: Figure
    task_s: Figure

    def all(self) -> tuple[Figure, ...]:
        """Return all of them."""
        return (self.bytes_per_s, self.multiply_adds_per_s, self.dispatch_s, self.task_s)


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """What a GPU that shares the NPU's memory reads, and computes, a second."""

    bytes_per_s: Figure
    multiply_adds_per_s: Figure

    def all(self) -> tuple[Figure, ...]:
        """Return all of them."""
        return (self.bytes_per_s, self.multiply_adds_per_s)


def npu_figures(chip: Chip, measured: MeasuredRates | None, products: Products = Products.BF16) -> NpuFigures:
    """Return an NPU's figures: `measured` ones of this machine, or those of others for kernels with these products."""
    task = _npu_figure(3, LEAST_PUSH_CYCLES / CLOCK_HZ, PUSH_CYCLES / CLOCK_HZ, TASKS)
    if measured is not None:
        source = f"measured here by `unicorn npu validate`, {measured.time}"
        read, computed, dispatch = (
            _npu_figure(number, rate, rate, source, True)
            for number, rate in enumerate((measured.bytes_per_s, measured.multiply_adds_per_s, measured.dispatch_s))
        )
        return NpuFigures(read, computed, dispatch, task)
    slowest, fastest = _NPU_CLOCKS_HZ[chip.name]
    channels = chip.columns * _CHANNEL_BYTES
    reads = (min(_NPU_BYTES[0], channels * slowest), min(_NPU_BYTES[1], channels * fastest))
    computes = (
        chip.num_cores * MULTIPLY_ADDS_A_CYCLE * slowest,
        chip.num_cores * _MOST_MULTIPLY_ADDS[products] * fastest,
    )
    others = f"others on an npu1, {OPEN_XDNA}"
    return NpuFigures(
        _npu_figure(0, *reads, f"implied by {NPU_ENGINE}; channels: {CHANNELS}, clocks: {DRIVER}"),
        _npu_figure(1, *computes, f"{COUNTED}; clocks: {DRIVER}"),
        _npu_figure(2, *_DISPATCH_S, others),
        task,
    )


def _npu_figure(number: int, low: float, high: float, source: str, is_measured: bool = False) -> Figure:
    name, unit, scale = (
        ("the NPU reads", "GB/s", 1e-9),
        ("the NPU computes", "G multiply-adds/s", 1e-9),
        ("the NPU begins a run in", "µs", 1e6),
        ("its controller begins a task in", "µs", 1e6),
    )[number]
    return Figure(name, low, high, source, unit, scale, is_measured)


def gpu_figures(info: DeviceInfo, chip: Chip) -> GpuFigures | None:
    """Return the figures of a GPU in the NPU's chip; None of any other, of which nothing is known beforehand."""
    if info.vendor_id != _AMD or info.type is not DeviceType.INTEGRATED or not info.compute_units:
        return None
    is_wide = info.compute_units >= _WIDE_UNITS and chip is not NPU1
    most = _WIDE_MEMORY if is_wide else _MEMORY[chip.name]
    units = info.compute_units * _MULTIPLY_ADDS_OF_UNIT
    return GpuFigures(
        Figure(
            f"{info.name} reads",
            _BYTES_IN_DECODING,
            most,
            f"a 780M's in {OPEN_XDNA}, and the memory's most: {MEMORIES[chip.name]}",
            "GB/s",
            1e-9,
        ),
        Figure(
            f"{info.name} computes",
            units * _LEAST_CLOCK_HZ * _SHARE_IN_PROMPTS,
            units * _MOST_CLOCK_HZ,
            f"a 780M's share in {OPEN_XDNA}, and the most: {MATRIX_UNITS}, {CLOCKS_OF_GPUS}",
            "G multiply-adds/s",
            1e-9,
        ),
    )
