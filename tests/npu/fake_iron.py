"""A stand-in for mlir-aie's IRON that records a design, and runs its cores' loops.

It has the names that npu/attention_design.py uses, with the parameters that mlir-aie 1.4.0 gives them, and refuses what
that refuses: a fifo's end that is used as the other one, an end that nobody has, a task outside of the sequence. So an
error in the design is seen without the toolchain. That the design places and routes is not seen.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Tile:
    col: int
    row: int


@dataclass(eq=False)
class Handle:
    fifo: ObjectFifo
    is_producer: bool
    tile: Tile | None
    log: list[str] = field(default_factory=list)

    def acquire(self, count: int) -> str:
        self.log.append(f"acquire {count}")
        return self.fifo.name

    def release(self, count: int) -> None:
        self.log.append(f"release {count}")

    def forward(
        self, *, tile: Tile, obj_type: Any = None, depth: int | None = None, name: str | None = None
    ) -> ObjectFifo:
        assert not self.is_producer and not self.fifo.links
        made = ObjectFifo(
            obj_type or self.fifo.obj_type, depth=depth or self.fifo.depth, name=name or f"{self.fifo.name}_fwd"
        )
        made.prod()
        self.fifo.links.append((tile, 0, made))
        return made

    def join(
        self,
        offsets: list[int],
        *,
        tile: Tile,
        depths: list[int] | None = None,
        obj_types: list[Any] | None = None,
        names: list[str] | None = None,
    ) -> list[ObjectFifo]:
        assert self.is_producer and not self.fifo.links
        assert depths and obj_types and names and len({len(offsets), len(depths), len(obj_types), len(names)}) == 1
        made = [
            ObjectFifo(obj_type, depth=depth, name=name)
            for obj_type, depth, name in zip(obj_types, depths, names, strict=True)
        ]
        for fifo in made:
            fifo.cons()
        self.fifo.links += [(tile, offset, fifo) for offset, fifo in zip(offsets, made, strict=True)]
        return made

    def fill(self, source: str, tap: TensorAccessPattern, *, group: TaskGroup, wait: bool = False) -> None:
        assert self.is_producer and self in Runtime.driven and not group.finished
        group.transfers.append((self.fifo.name, "fill", source, tap, wait))

    def drain(self, target: str, tap: TensorAccessPattern, *, group: TaskGroup, wait: bool = False) -> None:
        assert not self.is_producer and self in Runtime.driven and not group.finished
        group.transfers.append((self.fifo.name, "drain", target, tap, wait))


@dataclass(eq=False)
class ObjectFifo:
    obj_type: Any
    _: KW_ONLY
    depth: int = 2
    name: str = ""
    links: list[tuple[Tile, int, ObjectFifo]] = field(default_factory=list)  # made by forward or join, with the offset
    producer: Handle | None = None
    consumers: list[Handle] = field(default_factory=list)

    def prod(self, depth: int | None = None, *, tile: Tile | None = None) -> Handle:
        if self.producer is None:
            self.producer = Handle(self, True, tile)
        assert tile in (None, self.producer.tile)
        return self.producer

    def cons(self, depth: int | None = None, *, tile: Tile | None = None) -> Handle:
        self.consumers.append(Handle(self, False, tile))
        return self.consumers[-1]


@dataclass(eq=False)
class Buffer:
    type: Any
    name: str = ""
    values: list[int] = field(default_factory=lambda: [2, 3, 4])

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
        assert Runtime.driven, "a group is made in the sequence"
        self.transfers: list[tuple[Any, ...]] = []
        self.finished = False
        TaskGroup.last = self

    def finish(self) -> None:
        self.finished = True


@dataclass(eq=False)
class Runtime:
    driven: ClassVar[list[Handle]] = []  # the ends of the sequence that runs
    seq_fn: Callable[..., None]
    fn_args: list[Any]

    def run(self, buffers: tuple[str, ...]) -> None:
        Runtime.driven = _handles(self.fn_args)
        try:
            self.seq_fn(*buffers, *self.fn_args[len(buffers) :])
        finally:
            Runtime.driven = []


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
        self.rt.run(("cache", "packets", "results"))
        self._check_ends()
        for worker in self.workers:
            worker.core_fn(*worker.fn_args)
        return self

    def _check_ends(self) -> None:
        """Check that each end of a fifo belongs to the sequence, to one worker, or to a link."""
        held = [handle for part in (self.rt, *self.workers) for handle in _handles(part.fn_args)]
        assert len({id(handle) for handle in held}) == len(held)
        fifos = {id(fifo): fifo for handle in held for fifo in (handle.fifo, *(made for *_, made in handle.fifo.links))}
        for fifo in fifos.values():
            assert fifo.producer is not None and fifo.consumers, f"{fifo.name} has one end"

    def __str__(self) -> str:
        return f"module of {len(self.workers)} workers"


def _handles(arguments: Any) -> list[Handle]:
    if isinstance(arguments, list | tuple):
        return [handle for argument in arguments for handle in _handles(argument)]
    return [arguments] if isinstance(arguments, Handle) else []


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
