#!/usr/bin/env python3
"""One model from disk to tokens, beside what the machine allows: load, prompt processing, decoding.

    model.py SHAPE [--dtype BF16] [--weights int4] [--layers N] [--folder DIRECTORY] [--keep] [--device NAME]
             [--batch 1 8 32 64] [--prompt 512] [--tokens 64] [--repeat 3] [--load-rounds 1] [--json FILE]

SHAPE is one of tools/make_checkpoint.py: its weights are random, which no speed depends on. Loads are measured by
load.py, cold and warm, against bare parallel reads of the same files. Limits of the same run: the device's own copy, in
bytes read and written, for the bytes that a decode step must read; matrix operations have none here. Medians, with the
lowest and the highest of the repeats. --weights quantises while loading.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unicorn_async.cli.bench_run import measure_decode, measure_prompt
from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.engine.engine import Engine
from unicorn_async.engine.model_on_disk import ModelOnDisk
from unicorn_async.gpu.command import CommandPool, TimestampPool
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.device_info import select_device
from unicorn_async.gpu.instance import Instance
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.convert import convert
from unicorn_async.resources import resource_dir
from unicorn_async.tensor import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
MAKE = HERE.parent / "tools" / "make_checkpoint.py"
LOADS = "bare-buffered,bare-memory,engine"
COPY_BYTES = 1 << 30
COPIES = 8
SEED = 27
WARM_UP = 3  # runs: the engine records a step of a new shape once for each of its frames, and cuts the first one fine


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lowest and highest."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum up values."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:,.1f} ({self.lowest:,.1f} to {self.highest:,.1f})"


def measure_loads(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run load.py in a process of its own; returns what it wrote."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [sys.executable, str(HERE / "load.py"), str(folder), "--methods", LOADS, "--json", report.name]
        command += ["--repeat", str(options.load_rounds), *([f"--device={options.device}"] if options.device else [])]
        subprocess.run(command, check=True)
        found: dict[str, Any] = json.loads(Path(report.name).read_text())
    return found


def copy_bytes_per_s(name: str | None) -> float:
    """Return the rate of a kernel that copies, bytes read and bytes written counted."""
    with Instance.create() as instance:
        info = select_device(instance.devices(), name, allow_software=True)
        with Device.open(instance, info, cache_dir=None, shader_dir=resource_dir("shaders")) as device:
            memory = device.memory
            source, target = (memory.allocate(COPY_BYTES, MemoryKind.DEVICE, name=part) for part in ("from", "to"))
            pool, stamps = CommandPool(device, device.compute), TimestampPool(device, COPIES + 1)
            recorder = pool.recorder()
            recorder.timestamp(stamps, 0)
            for index in range(COPIES):
                convert(
                    recorder,
                    device.kernels,
                    src=source.address,
                    src_dtype=DType.F32,
                    dst=target.address,
                    dst_dtype=DType.F32,
                    num_elements=COPY_BYTES // 4,
                )
                recorder.barrier()
                recorder.timestamp(stamps, index + 1)
            device.compute.timeline.wait(device.compute.submit([recorder.end()]))
            times = stamps.read(0, COPIES + 1)
            for thing in (source, target, stamps, pool):
                thing.close()
    return 2 * COPY_BYTES / statistics.median(stop - start for start, stop in itertools.pairwise(times)) * 1e9


async def measure_engine(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Prompts of one sequence, and decoding at every batch size."""
    context = options.prompt + options.tokens + 64
    config = EngineConfig(
        device=options.device,
        max_num_seqs=max(options.batch),
        max_context=context,
        weights=WeightScheme(options.weights),
    )
    rng = random.Random(SEED)
    async with Engine.open(folder, config=config) as engine:
        await engine.loaded()
        runs = range(options.repeat + WARM_UP)
        prompts = [await measure_prompt(engine, rng, batch=1, num_tokens=options.prompt) for _ in runs][WARM_UP:]
        decodes = {
            batch: [await measure_decode(engine, rng, batch=batch, num_tokens=options.tokens) for _ in runs][WARM_UP:]
            for batch in options.batch
        }
        info = engine.device
        return {
            "device": info.name,
            "driver": f"{info.driver_name} {info.driver_info}",
            "software": info.is_software,
            "kernels": list(engine.kernels),
            "prompt_tokens_per_s": Spread.of([run.tokens_per_s for run in prompts]),
            "decode": {
                batch: {
                    "tokens_per_s": Spread.of([run.tokens_per_s for run in found]),
                    "device_busy": statistics.median(run.device_busy for run in found),
                    "host_us_per_step": statistics.median(1e6 * run.host_s / run.steps for run in found),
                }
                for batch, found in decodes.items()
            },
        }


def step_bytes(folder: Path, scheme: WeightScheme) -> int:
    """Weights that a decode step reads: all, but of an embedding table of its own only a few rows."""
    model = ModelOnDisk.read(folder, scheme)
    skipped = () if model.config.tie_embeddings else ("embed",)
    return sum(dest.nbytes for dest in model.plan.destinations if dest.name not in skipped)


def report(options: argparse.Namespace, found: dict[str, Any]) -> list[str]:
    """Return the table for people."""
    nbytes, copy = found["step_bytes"], found["copy_bytes_per_s"]
    flops = 2 * found["step_weights"] * found["prompt_tokens_per_s"].median
    kind = "SOFTWARE device" if found["software"] else "GPU"
    lines = [
        f"{options.shape} {options.dtype}, weights {options.weights}: {found['device']}, {found['driver']}, {kind}, "
        f"{os.cpu_count()} cores",
        f"device copy: {copy / 1e9:,.0f} GB/s read and written; a step reads {nbytes / 1e9:.2f} GB of weights",
        f"prompt of {options.prompt}: {found['prompt_tokens_per_s']} tok/s, {flops / 1e12:.0f} TFLOP/s",
    ]
    for batch, decode in found["decode"].items():
        rate = decode["tokens_per_s"]
        read = nbytes * rate.median / batch
        lines.append(
            f"decode, {batch:2} streams: {rate} tok/s, {read / 1e9:,.0f} GB/s of weights = {read / copy:.0%} of copy; "
            f"device busy {decode['device_busy']:.0%}, host {decode['host_us_per_step']:.0f} µs/step"
        )
    return lines


def main() -> None:
    """Make the model, measure, print."""
    parser = argparse.ArgumentParser(description="One model from disk to tokens, beside what the machine allows.")
    parser.add_argument("shape", help="as tools/make_checkpoint.py knows it")
    parser.add_argument("--dtype", choices=("BF16", "F16"), default="BF16")
    parser.add_argument("--weights", choices=[scheme.value for scheme in WeightScheme], default="auto")
    parser.add_argument("--layers", type=int, help="fewer or more than the shape has")
    parser.add_argument("--folder", type=Path, help="where the checkpoint goes, or is already (default: temporary)")
    parser.add_argument("--keep", action="store_true", help="leave the checkpoint that was made")
    parser.add_argument("--device")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--load-rounds", type=int, default=1, help="0 = no loads")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="unicorn-bench-"))
    is_made = not (folder / "config.json").exists()
    try:
        if is_made:
            command = [sys.executable, str(MAKE), options.shape, str(folder), "--dtype", options.dtype]
            command += ["--layers", str(options.layers)] if options.layers else []
            subprocess.run(command, check=True)
        loads = measure_loads(folder, options) if options.load_rounds else {}
        found = asyncio.run(measure_engine(folder, options))
        scheme = WeightScheme(options.weights)
        found |= {"step_bytes": step_bytes(folder, scheme), "step_weights": step_bytes(folder, WeightScheme.F16) // 2}
        found["loads"] = loads
        found["copy_bytes_per_s"] = copy_bytes_per_s(options.device)
        print("\n".join(report(options, found)), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1, default=asdict) + "\n")
    finally:
        if is_made and not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
