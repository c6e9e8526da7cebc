#!/usr/bin/env python3
"""One load of a model's files by one method, measured in a process of its own; load.py runs it.

    load_methods.py METHOD MODEL [--device NAME] [--threads N]

It prints one JSON object. The time is that of reading and copying alone: opening the device, making the plan, importing
libraries and the tokenizer come before it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from unicorn_async.config import EngineConfig
from unicorn_async.engine.engine import Engine
from unicorn_async.engine.startup import ModelOnDisk
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.device_info import select_device
from unicorn_async.gpu.instance import Instance
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.loader.open_file import PAGE_BYTES, page_memory
from unicorn_async.loader.read_facts import read_facts, resident_share
from unicorn_async.loader.read_strategy import choose_read_strategy
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from unicorn_async.gpu.memory import Buffer

CHUNK_BYTES = 16 << 20
BLOCK_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """What one load took. `cpu_s` is of all threads, kernel included; `peak_bytes` without the model's own bytes."""

    method: str
    nbytes: int
    seconds: float
    cpu_s: float
    peak_bytes: int
    resident_share: float  # of the files in the page cache before the load
    device: str
    driver: str
    software: bool
    note: str = ""


class Clock:
    """Wall and CPU time of a block."""

    def __enter__(self) -> Clock:
        self.cpu_s, self.seconds = -time.process_time(), -time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self.cpu_s += time.process_time()


@dataclass(frozen=True, slots=True)
class Job:
    """What a method works with."""

    model: ModelOnDisk
    device: Device
    threads: int

    @property
    def files(self) -> tuple[Path, ...]:
        """The model's files."""
        return self.model.checkpoint.files


def bare_direct(job: Job) -> Clock:
    """O_DIRECT into a ring of ordinary memory."""
    return read_into_ring(job.files, job.threads, os.O_DIRECT)


def bare_buffered(job: Job) -> Clock:
    """Plain reads into a ring of ordinary memory."""
    return read_into_ring(job.files, job.threads, 0)


def bare_memory(job: Job) -> Clock:
    """Plain reads into fresh device memory where the CPU sees it, else into a ring of staging memory."""
    total = sum(path.stat().st_size for path in job.files)
    with device_blocks(job.device, total) as blocks:
        views = [block.mapped for block in blocks if block.mapped is not None]
        if len(views) < len(blocks):
            staging = job.device.memory.allocate(BLOCK_BYTES, MemoryKind.STAGING, name="staging")
            assert staging.mapped is not None
            staging.mapped[::PAGE_BYTES] = bytes(len(staging.mapped[::PAGE_BYTES]))
            views = [staging.mapped] * len(blocks)
        return read_files(job.files, job.threads, 0, views)


def safetensors_copy(job: Job) -> Clock:
    """The safetensors library, tensor by tensor, each copied into device memory by one thread."""
    import torch
    from safetensors import safe_open

    def tensors() -> Iterator[Any]:
        for path in job.files:
            with safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no dict
                    yield opened.get_tensor(name)

    return copy_tensors(job, tensors, torch)


def runai_streamer(job: Job) -> Clock:
    """Run:ai model streamer, each tensor copied into device memory as it arrives."""
    import torch
    from runai_model_streamer import SafetensorsStreamer

    os.environ.setdefault("RUNAI_STREAMER_CONCURRENCY", str(job.threads))

    def tensors() -> Iterator[Any]:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files([str(path) for path in job.files])
            for _, tensor in streamer.get_tensors():
                yield tensor

    return copy_tensors(job, tensors, torch)


def fastsafetensors(job: Job) -> Clock:
    """fastsafetensors without GPUDirect, each tensor copied into device memory."""
    import torch
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def tensors() -> Iterator[Any]:
        loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True, max_threads=job.threads)
        loader.add_filenames({0: [str(path) for path in job.files]})
        buffer = loader.copy_files_to_device()
        for name in loader.get_keys():
            yield buffer.get_tensor(name)
        buffer.close()
        loader.close()

    return copy_tensors(job, tensors, torch)


METHODS: dict[str, Callable[[Job], Clock]] = {
    "bare-direct": bare_direct,
    "bare-buffered": bare_buffered,
    "bare-memory": bare_memory,
    "safetensors": safetensors_copy,
    "runai-streamer": runai_streamer,
    "fastsafetensors": fastsafetensors,
}
ENGINE_METHODS = ("engine", "engine-direct")


def read_into_ring(files: Iterable[Path], threads: int, flags: int) -> Clock:
    """Read files into memory that was touched before, a chunk a thread."""
    memory = page_memory(BLOCK_BYTES)
    memory[::PAGE_BYTES] = bytes(len(memory[::PAGE_BYTES]))
    return read_files(files, threads, flags, [memory])


def read_files(files: Iterable[Path], threads: int, flags: int, views: list[memoryview]) -> Clock:
    """Read every byte of the files, block after block of the views, from the first again after the last."""
    clock, position = Clock(), 0
    work: list[tuple[int, int, memoryview]] = []
    descriptors = [os.open(path, os.O_RDONLY | flags) for path in files]
    for descriptor in descriptors:
        for offset in range(0, os.fstat(descriptor).st_size, CHUNK_BYTES):
            view = views[position // BLOCK_BYTES % len(views)]
            start = position % BLOCK_BYTES
            work.append((descriptor, offset, view[start : start + CHUNK_BYTES]))
            position += CHUNK_BYTES
    with clock, ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(read_chunk, work):
            pass
    for descriptor in descriptors:
        os.close(descriptor)
    return clock


def read_chunk(work: tuple[int, int, memoryview]) -> None:
    """Read one chunk, or what the file has of it."""
    descriptor, offset, view = work
    done = 0
    while done < len(view) and (count := os.preadv(descriptor, [view[done:]], offset + done)):
        done += count
        if done % PAGE_BYTES:  # the end of the file
            return


@contextmanager
def device_blocks(device: Device, nbytes: int) -> Iterator[list[Buffer]]:
    """Fresh device memory for `nbytes` and a chunk's rest for each file."""
    count = -(-nbytes // BLOCK_BYTES) + 1
    blocks = [device.memory.allocate(BLOCK_BYTES, MemoryKind.DEVICE, name=f"block[{i}]") for i in range(count)]
    try:
        yield blocks
    finally:
        for block in blocks:
            block.close()


def copy_tensors(job: Job, tensors: Callable[[], Iterator[Any]], torch: Any) -> Clock:
    """Copy every tensor into mapped device memory, one after the other as they come."""
    clock, position = Clock(), 0
    total = sum(path.stat().st_size for path in job.files)
    with device_blocks(job.device, total) as blocks:
        views = [np.frombuffer(block.mapped, np.uint8) for block in blocks if block.mapped is not None]
        if len(views) < len(blocks):
            raise SystemExit("the device's memory is not mapped: this method can't be compared here")
        with clock:
            for tensor in tensors():
                source = tensor.contiguous().view(torch.uint8).reshape(-1).numpy()
                for start in range(0, len(source), BLOCK_BYTES):
                    part, place = source[start : start + BLOCK_BYTES], position % BLOCK_BYTES
                    target = views[position // BLOCK_BYTES % len(views)][place : place + len(part)]
                    np.copyto(target, part[: len(target)])
                    if len(target) < len(part):
                        rest = views[(position // BLOCK_BYTES + 1) % len(views)]
                        np.copyto(rest[: len(part) - len(target)], part[len(target) :])
                    position += len(part)
        del views
    return clock


async def engine_load(model: Path, device: str | None, threads: int | None, *, direct: bool) -> Load:
    """Load by the engine itself; `direct` makes it believe that no host memory is free."""

    def chooses_direct(on_disk: ModelOnDisk, info: Any, num_threads: int | None = None) -> Any:
        facts = read_facts(on_disk.checkpoint.files, file_bytes=on_disk.plan.bytes_to_read, host_bytes=0)
        return choose_read_strategy(replace(facts, free_bytes=0, resident_share=0.0), num_threads=num_threads)

    config = EngineConfig(
        device=device, allow_software=True, num_reader_threads=threads, max_num_seqs=1, max_context=512
    )
    resident = resident_share(ModelOnDisk.read(model).checkpoint.files)
    patch = mock.patch.object(ModelOnDisk, "read_strategy", chooses_direct) if direct else mock.MagicMock()
    with patch:
        async with Engine.open(model, config=config) as engine:
            clock, before = Clock(), resource_peak()
            with clock:
                await engine.loaded()
            progress, info = engine.progress, engine.device
            own = progress.bytes_total if info.shares_host_memory else 0
            return Load(
                "engine-direct" if direct else "engine",
                progress.bytes_total,
                progress.seconds,
                clock.cpu_s,
                max(0, resource_peak() - before - own),
                resident,
                info.name,
                f"{info.driver_name} {info.driver_info}",
                info.is_software,
                engine.read_strategy.text(),
            )


def other_load(method: str, model: Path, device_name: str | None, threads: int | None) -> Load:
    """Load by one of METHODS."""
    on_disk = ModelOnDisk.read(model)
    with Instance.create() as instance:
        info = select_device(instance.devices(), device_name, allow_software=True)
        with Device.open(instance, info, cache_dir=None, shader_dir=resource_dir("shaders")) as device:
            files = on_disk.checkpoint.files
            job = Job(on_disk, device, threads or on_disk.read_strategy(info).num_threads)
            resident, before = resident_share(files), resource_peak()
            clock = METHODS[method](job)
            total = sum(path.stat().st_size for path in files)
            own = total if info.shares_host_memory and method not in ("bare-direct", "bare-buffered") else 0
            return Load(
                method,
                total,
                clock.seconds,
                clock.cpu_s,
                max(0, resource_peak() - before - own),
                resident,
                info.name,
                f"{info.driver_name} {info.driver_info}",
                info.is_software,
                f"{job.threads} threads" if method.startswith("bare") else "",
            )


def resource_peak() -> int:
    """Return the largest resident size so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("method", choices=[*METHODS, *ENGINE_METHODS])
    parser.add_argument("model", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    try:
        if options.method in ENGINE_METHODS:
            direct = options.method == "engine-direct"
            load = asyncio.run(engine_load(options.model, options.device, options.threads, direct=direct))
        else:
            load = other_load(options.method, options.model, options.device, options.threads)
    except ImportError as exc:
        print(f"{options.method}: {exc}", file=sys.stderr)
        raise SystemExit(3) from None
    print(json.dumps(asdict(load)))


if __name__ == "__main__":
    main()
