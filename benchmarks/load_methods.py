#!/usr/bin/env python3
"""One load of a model's files by one method, measured in a process of its own; load.py runs it.

    load_methods.py METHOD MODEL [--device NAME] [--threads N] [--weights SCHEME] [--memory] [--settle] [--back GB]

It prints one JSON object. Opening the device, making the plan and importing libraries come before the time. That of a
bare read or a peer begins when files are open and memory is there; the engine's holds the opening of files and most of
the allocation, and it makes the tokenizer and compiles kernels beside the load. With a scheme, files are those of the
model's entry in the weight cache; METHOD `fill-cache` makes it. `--memory` measures the peak of host memory in place of
the time. With `--settle` the engine is closed only when all of its kernels are compiled, and kept for the next process.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import mmap
import sys
import threading
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

import numpy as np
from command_line import amount
from compared_loads import BARE, PEERS, Clock, Job, back_memory

from unicorn_async.cache.lookup import CacheState
from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.engine import files, opening
from unicorn_async.engine.engine import Engine
from unicorn_async.engine.files import ModelFiles
from unicorn_async.engine.model_load import ModelLoad
from unicorn_async.engine.opening import read_model
from unicorn_async.engine.user_folders import weight_cache_folder
from unicorn_async.errors import UnicornError
from unicorn_async.gpu.choice import select_device
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.instance import Instance
from unicorn_async.gpu.memory_types import MemoryKind
from unicorn_async.loader.read_facts import resident_share
from unicorn_async.loader.read_strategy import ReadFacts, choose_read_strategy
from unicorn_async.loader.stream import LoadStream
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from unicorn_async.checkpoint.partial_file import ModelDownload
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.memory import Buffer
    from unicorn_async.gpu.warm_up import WarmUp

ENGINE_METHODS = ("engine", "engine-direct", "engine-alone")
FILL = "fill-cache"
INTERVAL_S = 0.005
PAGE_BYTES = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Load:
    """What one load took. Without `--memory` the host's memory is not looked at, with it the time means nothing.

    `peak_bytes` is all of this process's host memory at its largest, `start_bytes` what of it was there before.
    """

    method: str
    nbytes: int
    seconds: float
    cpu_s: float
    peak_bytes: int | None
    start_bytes: int | None
    resident_share: float  # of the files in the page cache before the load
    device: str
    driver: str
    software: bool
    note: str = ""
    tokenizer_s: float | None = None

    @classmethod
    def of(
        cls, method: str, nbytes: int, clock: Clock, watch: HostMemoryWatch | None, resident: float, info: DeviceInfo
    ) -> dict[str, Any]:
        """Return a load as JSON values."""
        load = cls(
            method,
            nbytes,
            clock.seconds,
            clock.cpu_s,
            None if watch is None else watch.peak_bytes,
            None if watch is None else watch.start_bytes,
            resident,
            info.name,
            f"{info.driver_name} {info.driver_info}",
            info.is_software,
        )
        return asdict(load)


class HostMemoryWatch:
    """Samples this process's own memory (RssAnon and RssShmem of /proc/self/status) while its block runs.

    What the device's memory has of it is subtracted, page by page as mincore sees it, because on a software device it
    is host memory. Staging memory counts as the host's, unless it lies in the GPU's own; what a driver holds of it
    outside of this process's pages is added. File pages that are mapped (RssFile) are the page cache, which the kernel
    takes back, and are left out.
    Sampling costs time: do not time the same load.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host-memory")
        self._libc = ctypes.CDLL(None)
        self._libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        self.start_bytes = self.peak_bytes = self.sample()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self.peak_bytes = max(self.peak_bytes, self.sample())

    def sample(self) -> int:
        """Return the bytes that are held now."""
        software, heaps = self._device.info.is_software, self._device.info.heaps
        buffers = list(self._device.memory._live)
        own = _own_bytes()
        for buffer in buffers:
            is_staging = buffer.kind is not MemoryKind.DEVICE
            if software and not is_staging:
                own -= self._resident(buffer)
            elif is_staging and not software and not heaps[buffer.heap].device_local:
                own += buffer.allocated_bytes
        return own

    def _run(self) -> None:
        while not self._end.wait(INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, self.sample())

    def _resident(self, buffer: Buffer) -> int:
        mapped = buffer.mapped
        if mapped is None:  # closed meanwhile
            return 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        start = address // PAGE_BYTES * PAGE_BYTES
        size = address + mapped.nbytes - start
        pages = np.zeros(-(-size // PAGE_BYTES), np.uint8)
        if self._libc.mincore(start, size, pages.ctypes.data):  # freed meanwhile
            return 0
        return int(np.count_nonzero(pages & 1)) * PAGE_BYTES


def _own_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return sum(int(line.split()[1]) << 10 for line in status if line.startswith(("RssAnon:", "RssShmem:")))


def files_to_read(model: ModelFiles) -> tuple[Path, ...]:
    """Return the files that a load reads: the checkpoint's, or the cache entry's."""
    lookup = model.look_up(weight_cache_folder())
    return model.checkpoint.files if lookup.file is None else (lookup.file,)


class WatchedRun:
    """Measures the engine's own load, from the opening of its files to the last active layer."""

    def __init__(self, *, memory: bool) -> None:
        self._memory = memory
        self._run = LoadStream.run
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.clock = Clock()
        self.watch: HostMemoryWatch | None = None

    def patch(self) -> AbstractContextManager[Any]:
        """Return the patch that has the engine's load measured."""
        watched = self

        async def run(stream: LoadStream) -> None:
            await watched.run(stream)

        return mock.patch.object(LoadStream, "run", run)

    async def run(self, stream: LoadStream) -> None:
        """Run a load."""
        if self._memory:
            self.watch = HostMemoryWatch(stream._device)
        timing = asyncio.create_task(self._time(stream))
        await asyncio.sleep(0)  # the clock starts first
        try:
            with self.watch or nullcontext():
                await self._run(stream)
        except Exception as exc:
            await asyncio.wait([timing])
            timing.exception()  # the same
            self._done.set_exception(exc)
            raise
        await timing
        self._done.set_result(None)

    def fail(self, error: Exception) -> None:
        """Have `done` raise what keeps the load from beginning."""
        self._done.set_exception(error)

    async def _time(self, stream: LoadStream) -> None:
        with self.clock:
            async for _ in stream.watch():
                pass

    async def done(self) -> None:
        """Wait for its end; raises what it failed by, also where the load did not begin and nobody else is told."""
        await self._done


def engine_config(options: argparse.Namespace) -> EngineConfig:
    """Return a configuration for one short sequence."""
    return EngineConfig(
        device=options.device,
        allow_software=True,
        num_reader_threads=options.threads,
        max_num_seqs=1,
        max_context=512,
        weights=WeightScheme(options.weights),
    )


async def engine_load(options: argparse.Namespace) -> dict[str, Any]:
    """Load by the engine itself; `engine-direct` makes it believe that no host memory is free.

    `engine-alone` does nothing beside the load: it makes no tokenizer, and every kernel is compiled before.
    """

    def without_memory(facts: ReadFacts, *, num_threads: int | None = None) -> Any:
        return choose_read_strategy(
            ReadFacts(facts.file_bytes, 0.0, 0, facts.host_bytes, facts.has_direct, facts.num_cores),
            num_threads=num_threads,
        )

    async def compile_first(load: ModelLoad, warm_up: WarmUp) -> None:
        load.stream.begun.set()  # what else a start makes it makes before, too
        try:
            warm_up.add(await asyncio.to_thread(load.device.kernels.prepare, load.kernels.requests))
            await warm_up.run()
            back_memory(options.backed_bytes)
        except Exception as exc:
            run.fail(exc)
            raise
        await load.stream.run()

    def read_and_back(model: str | Path, config: EngineConfig, download: ModelDownload | None) -> ModelFiles:
        found = read_model(model, config, download)  # the tokenizer and the allocation begin behind it
        back_memory(options.backed_bytes)
        return found

    is_alone = options.method == "engine-alone"
    config = replace(engine_config(options), skip_tokenizer=is_alone)
    resident = resident_share(files_to_read(ModelFiles.read(options.model, config.weights)))
    run = WatchedRun(memory=options.memory)
    is_direct = options.method == "engine-direct"
    direct = mock.patch.object(files, "choose_read_strategy", without_memory) if is_direct else nullcontext()
    if is_alone:
        begin = mock.patch.object(ModelLoad, "_load", compile_first)
    else:
        begin = mock.patch.object(opening, "read_model", read_and_back)
    with run.patch(), direct, begin:
        async with Engine.open(options.model, config=config) as engine:
            await run.done()
            await engine.loaded()
            if options.settle:
                await asyncio.wait([engine._model.load])
            nbytes = engine.progress.bytes_total
            load = Load.of(options.method, nbytes, run.clock, run.watch, resident, engine.device)
            return load | {"note": engine.read_strategy.text(), "tokenizer_s": engine.tokenizer_s}


async def fill_cache(options: argparse.Namespace) -> dict[str, Any]:
    """Load once, and wait for the cache's entry."""
    clock = Clock()
    with clock:
        async with Engine.open(options.model, config=engine_config(options)) as engine:
            await engine.loaded()
            loaded_s = engine.progress.seconds
            status = await engine.cache_settled()
    if status.state not in (CacheState.HIT, CacheState.WRITTEN):
        raise SystemExit(f"the cache has no entry: {status.text()}")
    return {"seconds": clock.seconds, "loaded_s": loaded_s, "nbytes": status.nbytes, "state": status.state.value}


def other_load(options: argparse.Namespace) -> dict[str, Any]:
    """Load by a bare read or a peer."""
    on_disk = ModelFiles.read(options.model, WeightScheme(options.weights))
    files = files_to_read(on_disk)
    with Instance.create() as instance:
        info = select_device(instance.devices(), options.device, allow_software=True)
        with Device.open(instance, info, cache_dir=None, shader_dir=resource_dir("shaders")) as device:
            resident = resident_share(files)
            found = on_disk.look_up(weight_cache_folder())
            job = Job(files, device, options.threads or on_disk.read_strategy(info, found=found).num_threads)
            back_memory(options.backed_bytes)
            watch = HostMemoryWatch(device) if options.memory else None
            with watch or nullcontext():
                clock = {**BARE, **PEERS}[options.method](job)
            note = f"{job.threads} threads" if options.method in BARE else ""
            return Load.of(options.method, job.nbytes, clock, watch, resident, info) | {"note": note}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("method", choices=[*BARE, *PEERS, *ENGINE_METHODS, FILL])
    parser.add_argument("model", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--weights", choices=[scheme.value for scheme in WeightScheme], default=WeightScheme.AUTO.value)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--settle", action="store_true")
    parser.add_argument("--back", type=amount, default=0.0, metavar="GB")
    options = parser.parse_args()
    options.backed_bytes = 0 if options.memory else int(options.back * 1e9)
    try:
        if options.method == FILL:
            load = asyncio.run(fill_cache(options))
        elif options.method in ENGINE_METHODS:
            load = asyncio.run(engine_load(options))
        else:
            load = other_load(options)
    except ImportError as exc:
        print(f"{options.method}: {exc}", file=sys.stderr)
        raise SystemExit(3) from None
    except (MemoryError, UnicornError) as exc:
        raise SystemExit(f"{options.method}: {exc}") from None
    print(json.dumps(load))


if __name__ == "__main__":
    main()
