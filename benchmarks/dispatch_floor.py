#!/usr/bin/env python3
"""What a dispatch costs on a device before it does any work: kernels that only read, by how much they read.

    dispatch_floor.py [--device NAME] [--megabytes 0 1 4 12.4 24.8 65 130] [--repeats 64] [--json FILE]

Each figure is the time of a dispatch with the barrier after it, the median of rounds of dispatches that read memory one
after the other, so that no cache holds it. The smallest read is a block of 16 bytes. "Above" is what a read takes
beyond its bytes at the rate by which the largest size goes beyond the one before it: starting, filling and draining
the device. A product with so many bytes of weights can take no less.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from amounts import amount
from bench_device import DEVICE_HELP, device_facts, opened_device
from out_file import out_file

from unicorn_async.cli.options import count
from unicorn_async.engine.random_memory import random_memory
from unicorn_async.errors import UnicornError
from unicorn_async.gpu.command import CommandPool, TimestampPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.rates import read_rate

if TYPE_CHECKING:
    from unicorn_async.gpu.device import Device

ROUNDS = 7
BLOCK = 16  # bytes
POOL_BYTES, SOFTWARE_POOL_BYTES = 3 << 30, 64 << 20


@dataclass(frozen=True, slots=True)
class Floor:
    """The time of a dispatch that reads so much."""

    num_bytes: int
    us: float


def measure(device: Device, sizes: list[int], repeats: int) -> list[Floor]:
    """Time a read of each size, in bytes."""
    pool, stamps = CommandPool(device, device.compute), TimestampPool(device, ROUNDS + 2)
    most = SOFTWARE_POOL_BYTES if device.info.is_software else POOL_BYTES
    source = random_memory(pool, max(most, *sizes), name="weights")
    sink = device.memory.allocate(BLOCK, MemoryKind.DEVICE, name="sink")
    floors = []
    for size in sizes:
        copies, place = max(1, source.nbytes // size), 0
        recorder = pool.recorder()
        for index in range(ROUNDS + 2):  # the first round wakes the device up
            recorder.timestamp(stamps, index)
            for _ in range(repeats):
                address = source.address + place % copies * size
                read_rate(recorder, device.kernels, source=address, sink=sink.address, num_bytes=size)
                recorder.barrier()
                place += 1
        device.compute.timeline.wait(device.compute.submit([recorder.end()]))
        times = stamps.read(1, ROUNDS + 1)
        spans = [stop - start for start, stop in itertools.pairwise(times)]
        floors.append(Floor(size, statistics.median(spans) / repeats / 1e3))
    for thing in (sink, source, stamps, pool):
        thing.close()
    return floors


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description="What a dispatch costs that only reads.")
    parser.add_argument("--device", metavar="NAME", help=DEVICE_HELP)
    parser.add_argument("--megabytes", type=amount, nargs="+", default=[0, 1, 4, 12.4, 24.8, 65, 130])
    parser.add_argument("--repeats", type=count, default=64, help="dispatches between two timestamps")
    parser.add_argument("--json", type=out_file, metavar="FILE")
    options = parser.parse_args()
    if len(options.megabytes) < 2:
        parser.error("--megabytes: expected two sizes or more")
    sizes = [max(BLOCK, int(number * 1e6) // BLOCK * BLOCK) for number in options.megabytes]
    if any(first >= second for first, second in itertools.pairwise(sizes)):
        parser.error(f"--megabytes: expected each size to be larger than the one before it, got {sizes} bytes")
    try:
        with opened_device(options.device) as device:
            floors = measure(device, sizes, options.repeats)
    except UnicornError as exc:
        print(f"dispatch_floor.py: {exc}", file=sys.stderr)
        return 1
    last, before = floors[-1], floors[-2]
    rate = (last.num_bytes - before.num_bytes) / (last.us - before.us)  # bytes a microsecond
    for floor in floors:
        above, speed = floor.us - floor.num_bytes / rate, floor.num_bytes / floor.us / 1e3
        print(f"{floor.num_bytes / 1e6:9.2f} MB  {floor.us:9.2f} µs  {speed:8.1f} GB/s  {above:7.2f} µs above")
    if options.json:
        report = device_facts(device.info) | {"floors": [asdict(floor) for floor in floors]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
