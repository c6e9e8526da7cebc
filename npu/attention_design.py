"""Places the attention kernels on the array, in mlir-aie's IRON, version 1.4.0. Not yet compiled on hardware.

The four cores of a column are two teams. A team's buffers come from memory through a channel of its own into the
column's memory tile, which broadcasts them to both cores, each of which works on other rows; the memory tile joins the
strips of their results, one of each, and another channel takes them back. A core's loop is data-driven: an item's
parameters say how many queries, chunks and strips follow, so one xclbin serves every shape of a step, and only the
instructions change. The runtime sequence below is a small known one. It is there because the compiler wants one, and
to be read back: it shows which channels a team got (build.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from aie.helpers.taplib import TensorAccessPattern
from aie.iron import Buffer, Kernel, ObjectFifo, Program, Runtime, TaskGroup, Worker
from aie.iron.controlflow import range_
from aie.iron.device import NPU1, NPU2, Tile

from unicorn_async.npu.geometry import CORE_BUFFER_BYTES, CORES_PER_TEAM
from unicorn_async.npu.schedule import PACKET_BYTES
from unicorn_async.npu.tile_budget import (
    COUNTS_BYTES,
    MEMORY_TILE_BUFFERS,
    RESULT_STRIPS,
    STACK_BYTES,
    TEAMS_PER_COLUMN,
    core_buffers,
    state_bytes,
)

if TYPE_CHECKING:
    from unicorn_async.npu.geometry import HeadLayout

OBJECT = "attention.o"
_DEVICES = {"npu1": NPU1, "npu2": NPU2}
_ARRAY: Any = np.ndarray  # IRON's way to write a shape and a type; to mypy a shape is a type
_INTERFACE, _MEMORY_TILE, _FIRST_CORE = 0, 1, 2  # rows of a column


def attention_design(layout: HeadLayout) -> Any:
    """Return the design's MLIR module."""
    words, values = np.dtype[np.int32], np.dtype[np.float32]
    buffer_type = _ARRAY[(CORE_BUFFER_BYTES // 4,), words]
    state_type = _ARRAY[(state_bytes(layout) // 4,), words]
    counts_type = _ARRAY[(COUNTS_BYTES // 4,), words]
    strip_type = _ARRAY[(layout.strip_bytes // 4,), values]
    kernels = [
        Kernel("attention_begin", OBJECT, [buffer_type, state_type, counts_type, np.int32]),
        Kernel("attention_queries", OBJECT, [buffer_type, state_type]),
        Kernel("attention_chunk", OBJECT, [buffer_type, state_type]),
        Kernel("attention_strip", OBJECT, [state_type, strip_type]),
    ]
    sources, sinks, workers = [], [], []
    for column in range(layout.chip.columns):
        for team in range(TEAMS_PER_COLUMN):
            source, shared = _broadcast(layout, buffer_type, column, team)
            sink, strips = _joined(layout, strip_type, column, team)
            for place in range(CORES_PER_TEAM):
                row = _FIRST_CORE + CORES_PER_TEAM * team + place
                name = f"{column}_{row}"
                state = Buffer(state_type, name=f"state_{name}")
                counts = Buffer(counts_type, name=f"counts_{name}")
                workers.append(
                    Worker(
                        _item,
                        [shared.cons(), strips[place].prod(), state, counts, place, *kernels],
                        tile=Tile(column, row),
                        stack_size=STACK_BYTES,
                        dynamic_objfifo_lowering=True,
                        allocation_scheme="basic-sequential",  # the state is larger than a bank of 16 KB
                    )
                )
            sources.append(source)
            sinks.append(sink)
    runtime = Runtime(_sequence, [*_buffer_types(layout), layout, sources, sinks])
    return Program(_DEVICES[layout.chip.name](), runtime, workers=workers).resolve_program()


def _broadcast(layout: HeadLayout, buffer_type: Any, column: int, team: int) -> tuple[Any, Any]:
    """Return where the runtime fills a team's buffers, and the queue that all of its cores take the same ones from."""
    name = f"{column}_{team}"
    buffers = ObjectFifo(buffer_type, name=f"buffers_{name}", depth=MEMORY_TILE_BUFFERS)
    shared = buffers.cons().forward(
        tile=Tile(column, _MEMORY_TILE), obj_type=buffer_type, depth=core_buffers(layout), name=f"shared_{name}"
    )
    return buffers.prod(tile=Tile(column, _INTERFACE)), shared


def _joined(layout: HeadLayout, strip_type: Any, column: int, team: int) -> tuple[Any, list[Any]]:
    """Return where the runtime drains a team's results, and each core's queue of strips."""
    name, elements = f"{column}_{team}", layout.strip_bytes // 4
    pair_type = _ARRAY[(CORES_PER_TEAM * elements,), np.dtype[np.float32]]
    results = ObjectFifo(pair_type, name=f"results_{name}", depth=RESULT_STRIPS)
    strips = results.prod().join(
        [place * elements for place in range(CORES_PER_TEAM)],
        tile=Tile(column, _MEMORY_TILE),
        depths=[RESULT_STRIPS] * CORES_PER_TEAM,
        obj_types=[strip_type] * CORES_PER_TEAM,
        names=[f"strips_{name}_{place}" for place in range(CORES_PER_TEAM)],
    )
    return results.cons(tile=Tile(column, _INTERFACE)), strips


def _item(
    buffers: Any, strips: Any, state: Any, counts: Any, place: int, begin: Any, queries: Any, chunk: Any, strip: Any
) -> None:
    """One item; the worker repeats it for ever."""
    buffer = buffers.acquire(1)
    begin(buffer, state, counts, place)
    buffers.release(1)
    for _ in range_(counts[0]):
        buffer = buffers.acquire(1)
        queries(buffer, state)
        buffers.release(1)
    for _ in range_(counts[1]):
        buffer = buffers.acquire(1)
        chunk(buffer, state)
        buffers.release(1)
    for _ in range_(counts[2]):
        out = strips.acquire(1)
        strip(state, out)
        strips.release(1)


def _buffer_types(layout: HeadLayout) -> list[Any]:
    """Cache, packets and results of the known sequence: one item of one chunk for every team."""
    teams = layout.chip.num_teams
    words = np.dtype[np.int32]
    sizes = (teams * CORE_BUFFER_BYTES, teams * PACKET_BYTES, teams * layout.result_bytes)
    return [_ARRAY[(size // 4,), words] for size in sizes]


def _sequence(cache: Any, packets: Any, results: Any, layout: HeadLayout, sources: list[Any], sinks: list[Any]) -> None:
    """Everything is waited for, so that tokens are routed on every channel."""
    tasks = TaskGroup()
    teams = layout.chip.num_teams
    for team, (source, sink) in enumerate(zip(sources, sinks, strict=True)):
        sink.drain(results, _piece(teams, team, layout.result_bytes), group=tasks, wait=True)
        source.fill(packets, _piece(teams, team, PACKET_BYTES), group=tasks, wait=True)
        source.fill(cache, _piece(teams, team, CORE_BUFFER_BYTES), group=tasks, wait=True)
    tasks.finish()


def _piece(teams: int, team: int, nbytes: int) -> TensorAccessPattern:
    return TensorAccessPattern([teams * nbytes // 4], team * nbytes // 4, [1, 1, 1, nbytes // 4], [0, 0, 0, 1])
