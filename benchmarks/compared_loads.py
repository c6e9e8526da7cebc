"""What the engine's load is compared with: bare parallel reads of its files, and loads by other libraries.

Bare reads are what the machine allows. Of a library one thread copies the tensors into mapped device memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.loader.open_file import PAGE_BYTES, page_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from unicorn_async.gpu.device import Device
    from unicorn_async.gpu.memory import Buffer

CHUNK_BYTES = 16 << 20
BLOCK_BYTES = 256 << 20


TOUCH = """
import mmap, sys
memory = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_HUGEPAGE)
view = memoryview(memory)
view[::4096] = bytes(len(view[::4096]))
"""


class Clock:
    """Wall and CPU time of a block; CPU time is that of all threads, in the kernel too."""

    def __enter__(self) -> Clock:
        self.cpu_s, self.seconds = -time.process_time(), -time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self.cpu_s += time.process_time()


def back_memory(nbytes: int) -> None:
    """Have a process use so much memory, and end.

    Raises:
        MemoryError: it could not.
    """
    if not nbytes:
        return
    done = subprocess.run([sys.executable, "-c", TOUCH, str(nbytes)], stderr=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise MemoryError(f"{nbytes:,} bytes of memory can't be used ahead of the clock: exit status {done.returncode}")


@dataclass(frozen=True, slots=True)
class Job:
    """What a method works with: files, the device, and how many threads read."""

    files: tuple[Path, ...]
    device: Device
    threads: int

    @property
    def nbytes(self) -> int:
        """Bytes of the files."""
        return sum(path.stat().st_size for path in self.files)


def bare_direct(job: Job) -> Clock:
    """O_DIRECT into a ring of ordinary memory, in huge pages."""
    return read_into_ring(job.files, job.threads, os.O_DIRECT)


def bare_buffered(job: Job) -> Clock:
    """Plain reads into a ring of ordinary memory, in huge pages."""
    return read_into_ring(job.files, job.threads, 0)


def bare_memory(job: Job) -> Clock:
    """Plain reads into fresh device memory where the CPU sees it, else into a ring of staging memory."""
    with device_blocks(job.device, job.nbytes) as blocks:
        views = [block.mapped for block in blocks if block.mapped is not None]
        if len(views) < len(blocks):
            staging = job.device.memory.allocate(BLOCK_BYTES, MemoryKind.STAGING, name="staging")
            assert staging.mapped is not None
            staging.mapped[::PAGE_BYTES] = bytes(len(staging.mapped[::PAGE_BYTES]))
            views = [staging.mapped] * len(blocks)
        return read_files(job.files, job.threads, 0, views)


BARE: dict[str, Callable[[Job], Clock]] = {
    "bare-direct": bare_direct,
    "bare-buffered": bare_buffered,
    "bare-memory": bare_memory,
}


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


def safetensors_copy(job: Job) -> Clock:
    """The safetensors library, tensor by tensor."""
    import torch
    from safetensors import safe_open

    def tensors() -> Iterator[Any]:
        for path in job.files:
            with safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no dict
                    yield opened.get_tensor(name)

    return copy_tensors(job, tensors, torch)


def runai_streamer(job: Job) -> Clock:
    """Run:ai model streamer, each tensor as it arrives."""
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
    """fastsafetensors without GPUDirect, after it has read the files."""
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


PEERS: dict[str, Callable[[Job], Clock]] = {
    "safetensors": safetensors_copy,
    "runai-streamer": runai_streamer,
    "fastsafetensors": fastsafetensors,
}


def copy_tensors(job: Job, tensors: Callable[[], Iterator[Any]], torch: Any) -> Clock:
    """Copy every tensor into mapped device memory, one after the other as they come."""
    clock, position = Clock(), 0
    with device_blocks(job.device, job.nbytes) as blocks:
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
