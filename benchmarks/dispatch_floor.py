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
from unicorn_async.errors import UnicornError
from unicorn_async.gpu.command import CommandPool, TimestampPool
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.ops.rates import read_rate
from unicorn_async.tune.random_memory import random_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.gpu.device import Device

ROUNDS = 7
BLOCK = 16  # bytes
FURTHER = 1.25  # times the size before: the rate is by what the largest takes beyond that
POOL_BYTES, SOFTWARE_POOL_BYTES = 3 << 30, 64 << 20


@dataclass(frozen=True, slots=True)
class Floor:
    """The time of a dispatch that reads so much."""

    num_bytes: int
    us: float

    @classmethod
    def of(cls, num_bytes: int, spans_ns: Sequence[float], repeats: int) -> Floor:
        """Sum up rounds of `repeats` dispatches."""
        return cls(num_bytes, statistics.median(spans_ns) / repeats / 1e3)


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
        floors.append(Floor.of(size, spans, repeats))
    for thing in (sink, source, stamps, pool):
        thing.close()
    return floors


def lines(floors: Sequence[Floor]) -> list[str]:
    """Return a line for each size; what is above the bytes' own time, where the two largest sizes tell their rate."""
    before, last = floors[-2:]
    bytes_per_us = (last.num_bytes - before.num_bytes) / (last.us - before.us) if last.us > before.us else 0.0
    found = []
    for floor in floors:
        line = f"{floor.num_bytes / 1e6:9.2f} MB  {floor.us:9.2f} µs  {floor.num_bytes / floor.us / 1e3:8.1f} GB/s"
        above = f"  {floor.us - floor.num_bytes / bytes_per_us:7.2f} µs above" if bytes_per_us else ""
        found.append(line + above)
    if not bytes_per_us:
        found.append("the largest size took no longer than the one before it: nothing can be said about a rate")
    return found


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
    if sizes[-1] < FURTHER * sizes[-2]:
        parser.error(
            f"--megabytes: expected the last size to be {FURTHER} times the one before or more, got {sizes} bytes"
        )
    try:
        with opened_device(options.device) as device:
            floors = measure(device, sizes, options.repeats)
    except UnicornError as exc:
        print(f"dispatch_floor.py: {exc}", file=sys.stderr)
        return 1
    print("\n".join(lines(floors)))
    if options.json:
        report = device_facts(device.info) | {"floors": [asdict(floor) for floor in floors]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
