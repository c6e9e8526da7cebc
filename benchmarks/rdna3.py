#!/usr/bin/env python3
"""What RADV's compiler makes of a model's kernels for RDNA3, on a machine without such a GPU.

    rdna3.py MODEL... [--weights SCHEME] [--chips 780M 8060S 7900XTX] [--tokens 1 2 4 8 16 32 64 512]
             [--code DIR] [--json FILE] [--check]

RADV makes a device without hardware, whose compiler is the real one (RADV_FORCE_FAMILY). Every pipeline that the plans
choose for each chip is compiled by it: registers, spills, scratch, LDS and instructions are what the driver says, waves
on a SIMD what that chip's registers and LDS leave room for. Nothing runs, and no time is measured.

Of products with weights there is an estimate beside it: the multiply-adds that they need, by the loop that has most of
them, from its instructions and their published rates (see rdna3_code.py), on all of the chip's SIMDs at once; and what
reading the weights once takes at the rate of the chip's memory. The larger of the two bounds the product.
The estimate has no latencies, no starts and ends, and no misses of caches: it says what can't be, not what will be.

A model is a checkpoint, or a shape of tools/make_checkpoint.py or of rdna3_shapes.py with a type of weights
(qwen3-0.6b:Q4_K, gpt-oss-20b:MXFP4), for which there need be no file. `--check` prints pipelines alone that break the
rules: nothing outside of registers, room for four waves of 32 lanes on each SIMD, and for two work-groups on each
compute unit; it fails where there are such.

The driver is the one of VK_DRIVER_FILES, or RADV of the system. One older than Mesa 23 has no matrices, and the plans
choose without them then: for Debian 12 there is a newer one (tools/get_radv.py). The compiler's target is gfx1100 for
all chips; the others have the same instructions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from command_line import out_file, run_script
from rdna3_code import LANES, Loop, hottest_loop
from rdna3_driver import Compiled, Compiler, Statistics
from rdna3_models import MODELS, TYPES, Model

from unicorn_async.cli.options import count
from unicorn_async.config import EngineConfig, KVDType, WeightScheme
from unicorn_async.errors import UnicornError, VulkanUnavailableError
from unicorn_async.gpu.device_info import DeviceInfo, DeviceType, MemoryHeap
from unicorn_async.gpu.instance import Instance
from unicorn_async.hybrid.choice import fit_options
from unicorn_async.memory.plan import attention_shape
from unicorn_async.ops.linear_plans.product import Product
from unicorn_async.step.dry_run import DryRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unicorn_async.gpu.kernel import KernelRequest
    from unicorn_async.gpu.listing import ListedDispatch

FAMILIES = ("navi31", "gfx1100")  # names of one target, by newer and by older drivers
ICD = "/usr/share/vulkan/icd.d/radeon_icd.x86_64.json"
TOKENS = (1, 2, 4, 8, 16, 32, 64, 512)
GIB = 1 << 30
LDS_BYTES = 128 << 10  # of two compute units, which share it
LEAST_WAVES, LEAST_GROUPS = 4, 4  # of 32 lanes on a SIMD; on two compute units
MOST_WAVES = 16  # of a SIMD


@dataclass(frozen=True, slots=True)
class Chip:
    """An RDNA3 GPU by its public data: registers are a SIMD's, of 32 lanes; gb_per_s its memory's."""

    name: str
    compute_units: int
    registers: int
    granule: int  # registers are given out so many at a time
    ghz: float
    gb_per_s: float
    device_type: DeviceType
    heaps: tuple[MemoryHeap, ...]

    def describe(self, info: DeviceInfo) -> DeviceInfo:
        """Return what the chip says of itself, where the compiler's device says all else."""
        shares = {
            "type": self.device_type,
            "heaps": self.heaps,
            "rebar": True,
            "memory_budget": True,
            "compute_units": self.compute_units,
        }
        return replace(info, name=self.name, missing=(), **shares)  # type: ignore[arg-type]

    def waves(self, statistics: Statistics, workgroup: int) -> int:
        """Waves that a SIMD has room for; four SIMDs share LDS and work-groups."""
        share = statistics.lanes // LANES  # of 32 lanes' registers that a wave takes
        granules = -(-statistics.vgprs * share // self.granule)
        by_registers = self.registers // max(granules * self.granule, 1)
        waves = -(-workgroup // statistics.lanes)
        if not statistics.lds_bytes:
            return min(by_registers, MOST_WAVES)
        groups = LDS_BYTES // statistics.lds_bytes
        return min(by_registers, MOST_WAVES, groups * waves // 4 if groups * waves >= 4 else 1)


def _shared(vram: int, gtt: int) -> tuple[MemoryHeap, ...]:
    return (
        MemoryHeap(gtt * GIB, device_local=False, budget=gtt * GIB, used=0),
        MemoryHeap(vram * GIB, device_local=True, budget=vram * GIB, used=0),
    )


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("780M", 12, 1024, 16, 2.7, 89.6, DeviceType.INTEGRATED, _shared(60, 30)),
        Chip("8060S", 40, 1536, 24, 2.9, 256.0, DeviceType.INTEGRATED, _shared(80, 40)),
        Chip("7900XTX", 96, 1536, 24, 2.5, 960.0, DeviceType.DISCRETE, _shared(24, 60)),
    )
}


@dataclass(frozen=True, slots=True)
class Row:
    """One pipeline for one chip; of a product what it needs by its instructions and by memory, in microseconds."""

    chip: str
    tokens: int
    kernel: str
    shape: str
    constants: str
    statistics: Statistics
    waves: int
    loop: Loop | None
    code_us: float | None
    memory_us: float | None

    @property
    def faults(self) -> tuple[str, ...]:
        """What breaks the rules, in words."""
        held = self.statistics
        found = (
            (held.spilled, f"{held.spilled} registers spilled"),
            (held.scratch_bytes, f"{held.scratch_bytes} bytes of scratch"),
            (self.waves * held.lanes < LEAST_WAVES * LANES, f"{self.waves} waves of {held.lanes} lanes on a SIMD"),
            (held.lds_bytes * LEAST_GROUPS > LDS_BYTES, f"{held.lds_bytes} bytes of LDS"),
        )
        return tuple(words for breaks, words in found if breaks)


def compiled_rows(
    compiler: Compiler, chip: Chip, model: Model, kv_dtype: KVDType, tokens: Sequence[int]
) -> Iterator[Row]:
    """Compile what the plans choose for steps of so many tokens, each pipeline and shape once."""
    info = chip.describe(compiler.info)
    config = fit_options(model.spec, EngineConfig(kv_dtype=kv_dtype))
    run = DryRun(info, model.spec, attention_shape(model.spec, config), model.plan)
    seen = set()
    for num_tokens in tokens:
        for dispatch in (*run.embedding(), *run.unique_layers(num_tokens), *run.head(num_tokens)):
            product = product_of(dispatch)
            key = dispatch.request.name, tuple(sorted(dispatch.request.constants.items())), product
            if key not in seen:
                seen.add(key)
                yield _row(compiler, chip, num_tokens, dispatch, product)


def product_of(dispatch: ListedDispatch) -> Product | None:
    """Name the product that a dispatch makes, if it makes one."""
    return Product.recorded(dispatch.request.name, dispatch.request.constants, dispatch.fields)


def code_us(chip: Chip, found: Compiled, product: Product, request: KernelRequest) -> float | None:
    """Microseconds of a product's multiply-adds by its main loop, on all of the chip's SIMDs; None without a loop.

    Counts are of 32 lanes: a larger wave does more in a turn, and takes longer for it.
    """
    loop = hottest_loop(found.code)
    if loop is None:
        return None
    tile = int(request.constants.get("TILE_T", request.constants.get("TOKENS", 1)))
    padded = -(-product.tokens // tile) * tile
    turns = padded * product.n * product.k / loop.macs
    return turns * loop.cycles() / chip.compute_units / chip.ghz / 1e3


def _row(compiler: Compiler, chip: Chip, tokens: int, dispatch: ListedDispatch, product: Product | None) -> Row:
    request = dispatch.request
    found = compiler.compile(request)
    memory_us = None if product is None else product.weight_bytes / chip.gb_per_s / 1e3
    by_code_us = None if product is None else code_us(chip, found, product, request)
    shape = "" if product is None else f"{product.n}x{product.k}"
    constants = " ".join(f"{name}={value}" for name, value in request.constants.items())
    waves = chip.waves(found.statistics, found.workgroup)
    loop = hottest_loop(found.code)
    return Row(chip.name, tokens, request.name, shape, constants, found.statistics, waves, loop, by_code_us, memory_us)


def table(rows: list[Row]) -> list[str]:
    """Return the rows as text; those that break the rules are marked."""
    lines = [
        f"{'chip':8}{'tokens':>7}  {'kernel':34}{'shape':14}{'VGPRs':>6}{'spilled':>8}{'scratch':>8}{'LDS':>7}"
        f"{'waves':>6}{'loop: VALU':>11}{'dot4':>6}{'WMMA':>6}{'LDS':>5}{'loads':>6}{'code µs':>10}{'memory µs':>10}"
    ]
    for row in rows:
        held, loop = row.statistics, row.loop or Loop()
        mark = " *" if row.faults else ""
        times = "".join(f"{'' if us is None else f'{us:.1f}':>10}" for us in (row.code_us, row.memory_us))
        lines.append(
            f"{row.chip:8}{row.tokens:7}  {row.kernel:34}{row.shape:14}{held.vgprs:6}{held.spilled:8}"
            f"{held.scratch_bytes:8}{held.lds_bytes:7}{row.waves:6}{loop.vector:11}{loop.dots:6}{loop.matrix:6}"
            f"{loop.lds:5}{loop.loads:6}{times}{mark}"
        )
    return lines


def choose_driver() -> None:
    """Make RADV the driver of this process, with a device without hardware.

    Raises:
        VulkanUnavailableError: there is no RADV that can do that.
    """
    os.environ.setdefault("VK_DRIVER_FILES", ICD)
    probe = "from unicorn_async.gpu.instance import Instance\nwith Instance.create() as found: assert found.devices()"
    for family in FAMILIES:
        environ = os.environ | {"RADV_FORCE_FAMILY": family}
        if not subprocess.run([sys.executable, "-c", probe], env=environ, capture_output=True, check=False).returncode:
            os.environ["RADV_FORCE_FAMILY"] = family
            return
    raise VulkanUnavailableError(
        f"{os.environ['VK_DRIVER_FILES']}: no RADV that knows {' or '.join(FAMILIES)} (Debian: mesa-vulkan-drivers)"
    )


def main() -> None:
    """Compile, and print."""
    parser = argparse.ArgumentParser(description="What RADV's compiler makes of a model's kernels for RDNA3.")
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help=f"a checkpoint, or one of {', '.join(MODELS)} with {', '.join(TYPES)}: qwen3-0.6b:Q4_K",
    )
    parser.add_argument("--weights", type=WeightScheme, default=WeightScheme.AUTO, metavar="SCHEME")
    parser.add_argument("--kv-dtype", type=KVDType, default=EngineConfig().kv_dtype, metavar="TYPE")
    parser.add_argument("--chips", nargs="+", choices=list(CHIPS), default=list(CHIPS))
    parser.add_argument("--tokens", nargs="+", type=count, default=list(TOKENS), metavar="N")
    parser.add_argument("--code", type=Path, metavar="DIR", help="write each pipeline's code there")
    parser.add_argument("--json", type=out_file, metavar="FILE")
    parser.add_argument(
        "--check", action="store_true", help="print what breaks the rules alone, and fail where that is"
    )
    options = parser.parse_args()
    models = [Model.find(name, options.weights) for name in options.models]
    choose_driver()
    with Instance.create() as instance, closing(Compiler(instance, options.code)) as compiler:
        driver = f"{compiler.info.name}, {compiler.info.driver_name} {compiler.info.driver_info}"
        print(f"{driver}: a compiler without a GPU; nothing is measured", flush=True)
        rows = {
            model.name: [
                row
                for name in options.chips
                for row in compiled_rows(compiler, CHIPS[name], model, options.kv_dtype, options.tokens)
            ]
            for model in models
        }
        print(f"{compiler.num_compiled} pipelines, compiled in {compiler.seconds:.1f} s")
    for name, own in rows.items():
        print(f"\n{name}")
        print("\n".join(table([row for row in own if row.faults or not options.check])))
    if options.json is not None:
        body = {"driver": driver, "models": {name: [asdict(row) for row in own] for name, own in rows.items()}}
        options.json.write_text(json.dumps(body, indent=1))
    faulty = [row for own in rows.values() for row in own if row.faults]
    if options.check and faulty:
        raise UnicornError(f"{len(faulty)} pipelines break the rules, the first: {', '.join(faulty[0].faults)}")


if __name__ == "__main__":
    run_script(main)
