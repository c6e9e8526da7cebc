"""Places the attention kernels on the array, in mlir-aie's IRON, version 1.4.0. Not yet compiled on hardware.

Of every column two cores work: each has its buffers filled from memory through a channel of its own, and its results
go back through another. A core's loop is data-driven: an item's parameters say how many chunks and strips follow, so
one xclbin serves every shape of a step, and only the instructions change. The runtime sequence below is a small known
one. It is there because the compiler wants one, and to be read back: it shows which channels a core got (build.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from aie.helpers.taplib import TensorAccessPattern
from aie.iron import Buffer, Kernel, ObjectFifo, Program, Runtime, TaskGroup, Worker
from aie.iron.controlflow import range_
from aie.iron.device import NPU1, NPU2, Tile

from unicorn_async.npu.geometry import CORE_BUFFER_BYTES
from unicorn_async.npu.schedule import PACKET_BYTES
from unicorn_async.npu.tile_budget import CORES_PER_COLUMN, RESULT_STRIPS, STACK_BYTES, core_buffers, state_bytes

if TYPE_CHECKING:
    from unicorn_async.npu.geometry import HeadLayout

OBJECT = "attention.o"
_DEVICES = {"npu1": NPU1, "npu2": NPU2}
_ARRAY: Any = np.ndarray  # IRON's way to write a shape and a type; to mypy a shape is a type
_FIRST_ROW = 2  # of cores; row 0 is the interface to memory, row 1 the memory tile, which is not used


def attention_design(layout: HeadLayout) -> Any:
    """Return the design's MLIR module."""
    words, values = np.dtype[np.int32], np.dtype[np.float32]
    buffer_type = _ARRAY[(CORE_BUFFER_BYTES // 4,), words]
    state_type = _ARRAY[(state_bytes(layout) // 4,), words]
    counts_type = _ARRAY[(2,), words]
    strip_type = _ARRAY[(layout.strip_bytes // 4,), values]
    kernels = [
        Kernel("attention_begin", OBJECT, [buffer_type, state_type, counts_type]),
        Kernel("attention_queries", OBJECT, [buffer_type, state_type]),
        Kernel("attention_chunk", OBJECT, [buffer_type, state_type]),
        Kernel("attention_strip", OBJECT, [state_type, strip_type]),
    ]
    sources, sinks, workers = [], [], []
    for column in range(layout.chip.columns):
        for core in range(CORES_PER_COLUMN):
            name = f"{column}_{core}"
            buffers = ObjectFifo(buffer_type, name=f"buffers_{name}", depth=core_buffers(layout))
            strips = ObjectFifo(strip_type, name=f"strips_{name}", depth=RESULT_STRIPS)
            state = Buffer(state_type, name=f"state_{name}")
            counts = Buffer(counts_type, name=f"counts_{name}")
            workers.append(
                Worker(
                    _item,
                    [buffers.cons(), strips.prod(), state, counts, *kernels],
                    tile=Tile(column, _FIRST_ROW + core),
                    stack_size=STACK_BYTES,
                    dynamic_objfifo_lowering=True,
                    allocation_scheme="basic-sequential",  # the state is larger than a bank of 16 KB
                )
            )
            sources.append(buffers.prod(tile=Tile(column, 0)))
            sinks.append(strips.cons(tile=Tile(column, 0)))
    runtime = Runtime(_sequence, [*_buffer_types(layout), layout, sources, sinks])
    return Program(_DEVICES[layout.chip.name](), runtime, workers=workers).resolve_program()


def _item(buffers: Any, strips: Any, state: Any, counts: Any, begin: Any, queries: Any, chunk: Any, strip: Any) -> None:
    """One item; the worker repeats it for ever."""
    buffer = buffers.acquire(1)
    begin(buffer, state, counts)
    buffers.release(1)
    buffer = buffers.acquire(1)
    queries(buffer, state)
    buffers.release(1)
    for _ in range_(counts[0]):
        buffer = buffers.acquire(1)
        chunk(buffer, state)
        buffers.release(1)
    for _ in range_(counts[1]):
        out = strips.acquire(1)
        strip(state, out)
        strips.release(1)


def _buffer_types(layout: HeadLayout) -> list[Any]:
    """Cache, packets and results of the known sequence: one item of one chunk for every core."""
    cores = layout.chip.num_cores
    words = np.dtype[np.int32]
    sizes = (cores * CORE_BUFFER_BYTES, cores * PACKET_BYTES, cores * layout.result_bytes)
    return [_ARRAY[(size // 4,), words] for size in sizes]


def _sequence(cache: Any, packets: Any, results: Any, layout: HeadLayout, sources: list[Any], sinks: list[Any]) -> None:
    """Everything is waited for, so that tokens are routed on every channel."""
    tasks = TaskGroup()
    cores = layout.chip.num_cores
    for core, (source, sink) in enumerate(zip(sources, sinks, strict=True)):
        sink.drain(results, _piece(cores, core, layout.result_bytes), group=tasks, wait=True)
        source.fill(packets, _piece(cores, core, PACKET_BYTES), group=tasks, wait=True)
        source.fill(cache, _piece(cores, core, CORE_BUFFER_BYTES), group=tasks, wait=True)
    tasks.finish()


def _piece(cores: int, core: int, nbytes: int) -> TensorAccessPattern:
    return TensorAccessPattern([cores * nbytes // 4], core * nbytes // 4, [1, 1, 1, nbytes // 4], [0, 0, 0, 1])
