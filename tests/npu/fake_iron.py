"""A stand-in for mlir-aie's IRON that records a design, and runs its cores' loops.

It has the names that npu/attention_design.py uses, with the parameters that mlir-aie 1.4.0 gives them, so that a typing
error in the design is seen without the toolchain. That the design places and routes is not seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Tile:
    col: int
    row: int


@dataclass(eq=False)
class Handle:
    fifo: ObjectFifo
    tile: Tile | None
    log: list[str] = field(default_factory=list)

    def acquire(self, count: int) -> str:
        self.log.append(f"acquire {count}")
        return self.fifo.name

    def release(self, count: int) -> None:
        self.log.append(f"release {count}")

    def fill(self, source: str, tap: TensorAccessPattern, *, group: TaskGroup, wait: bool = False) -> None:
        group.transfers.append((self.fifo.name, "fill", source, tap, wait))

    def drain(self, target: str, tap: TensorAccessPattern, *, group: TaskGroup, wait: bool = False) -> None:
        group.transfers.append((self.fifo.name, "drain", target, tap, wait))


@dataclass(eq=False)
class ObjectFifo:
    obj_type: Any
    depth: int = 2
    name: str = ""

    def prod(self, depth: int | None = None, *, tile: Tile | None = None) -> Handle:
        return Handle(self, tile)

    def cons(self, depth: int | None = None, *, tile: Tile | None = None) -> Handle:
        return Handle(self, tile)


@dataclass(eq=False)
class Buffer:
    type: Any
    name: str = ""
    values: list[int] = field(default_factory=lambda: [3, 2])

    def __getitem__(self, index: int) -> int:
        return self.values[index]


@dataclass(eq=False)
class Kernel:
    name: str
    bin_name: str
    arg_types: list[Any]
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def __call__(self, *arguments: Any) -> None:
        assert len(arguments) == len(self.arg_types)
        self.calls.append(arguments)


@dataclass(eq=False)
class Worker:
    core_fn: Callable[..., None]
    fn_args: list[Any]
    tile: Tile | None = None
    stack_size: int = 0
    dynamic_objfifo_lowering: bool = False
    allocation_scheme: str | None = None


class TaskGroup:
    last: TaskGroup

    def __init__(self) -> None:
        self.transfers: list[tuple[Any, ...]] = []
        TaskGroup.last = self

    def finish(self) -> None:
        self.finished = True


@dataclass(eq=False)
class Runtime:
    seq_fn: Callable[..., None]
    fn_args: list[Any]


@dataclass(eq=False)
class TensorAccessPattern:
    tensor_dims: list[int]
    offset: int
    sizes: list[int]
    strides: list[int]


@dataclass(eq=False)
class Program:
    device: Any
    rt: Runtime
    workers: list[Worker] = field(default_factory=list)

    def resolve_program(self) -> Program:
        buffers = ("cache", "packets", "results")
        self.rt.seq_fn(*buffers, *self.rt.fn_args[len(buffers) :])
        for worker in self.workers:
            worker.core_fn(*worker.fn_args)
        return self

    def __str__(self) -> str:
        return f"module of {len(self.workers)} workers"


class NPU1: ...


class NPU2: ...


def modules() -> dict[str, ModuleType]:
    """Everything that a design imports, by name."""
    contents: dict[str, list[Any]] = {
        "aie": [],
        "aie.helpers": [],
        "aie.helpers.taplib": [TensorAccessPattern],
        "aie.iron": [Buffer, Kernel, ObjectFifo, Program, Runtime, TaskGroup, Worker],
        "aie.iron.controlflow": [],
        "aie.iron.device": [NPU1, NPU2, Tile],
    }
    made = {}
    for name, values in contents.items():
        made[name] = module = ModuleType(name)
        module.__dict__.update({value.__name__: value for value in values})
    made["aie.iron.controlflow"].__dict__["range_"] = range
    return made
