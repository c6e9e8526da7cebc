"""A double of pyxrt that behaves as the hardware does, for tests alone.

Runs complete by themselves, later, and there are no callbacks. One that would take longer than the driver allows is
ended, with half of its results, and others of its context with it. What was not synced is not seen by the other side. A
buffer in the wrong memory group gives a run that completes without work. Contexts are few. Faults are injected.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tests.npu.fake_array import FakeArray, Hang
from tests.npu.kernel_library import build_kernels, defines_of
from tests.npu.machine import ADDRESS
from tests.npu.xrt_enums import Direction, Flags, State
from unicorn_async.npu.geometry import HeadLayout, chip_named
from unicorn_async.npu.manifest import read_manifest

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LIBC = ctypes.CDLL(None)
_ADDRESS_OF = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

INSTRUCTION_GROUP, DATA_GROUP, WRONG_GROUP = 1, 65536, 7


@dataclass
class Npu:
    """The machine behind the double: what it has, what goes wrong, and what was done.

    `faults` are taken run by run: "ok", "timeout", "abort", "context lost" (this run and all later ones of its
    context), "stuck" (no end until `release`), "no answer" (it is over, but its state stays as it was), "start fails",
    "state fails" (nobody can ask for its end, and it has none until `release`), "vanishes" (the device is gone from
    then on), "no work" (it completes, and does nothing) or "wrong results". An empty queue means "ok".
    """

    kernels: Path  # folder of built kernels
    devices: tuple[str, ...] = (ADDRESS,)  # where XRT finds some
    max_contexts: int = 6
    refused_contexts: str = ""  # the error of every new one
    hand_out_wrong_groups: bool = False
    user_pointers: str = "taken"  # or "absent", as in older XRTs, "refused", or "cloned": a run gets a copy
    faults: deque[str] = field(default_factory=deque)
    seconds_per_buffer: float = 20e-6  # that a core takes
    run_limit_s: float = 2.0  # the driver's
    hold: threading.Event = field(default_factory=threading.Event)  # runs wait for it to be set
    released: threading.Event = field(default_factory=threading.Event)
    hangs: threading.Event = field(default_factory=threading.Event)  # set by a stuck run, which keeps others waiting
    contexts: int = 0
    contexts_made: int = 0
    buffers: int = 0
    buffer_bytes: int = 0
    freed_beside: list[int] = field(default_factory=list)  # how many contexts lived when a buffer went
    memory_limit: int = 1 << 34
    runs: int = 0
    timeouts: int = 0  # of runs that were too long
    syncs: list[tuple[Direction, int, int]] = field(default_factory=list)  # direction, offset and size of each
    wrapped_bytes: int = 0  # of user pointers that live
    unmapped_first: int = 0  # how many user pointers outlived their memory
    array: FakeArray | None = None
    threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hold.set()
        self._order = threading.Lock()

    def release(self) -> None:
        """Let stuck runs end, and wait for all of them."""
        self.hold.set()
        self.released.set()
        for thread in self.threads:
            thread.join()

    def module(self) -> ModuleType:
        """Return what stands for pyxrt."""
        module = ModuleType("pyxrt")
        module.__dict__.update(
            xclBOSyncDirection=Direction,
            ert_cmd_state=State,
            enumerate_devices=lambda: len(self.devices),
            device=lambda bdf: Device(self, bdf),
            xclbin=XclBin,
            hw_context=HwContext,
            kernel=Kernel,
            bo=type("bo", (Bo,), {"flags": Flags}),
            run=Run,
        )
        if self.user_pointers != "absent":
            module.__dict__["ext"] = SimpleNamespace(bo=ExtBo)
        return module


class XclBin:
    """An xclbin of the double: a file that names its manifest."""

    def __init__(self, filename: str) -> None:
        self.path = Path(filename)
        try:
            self.fields: dict[str, Any] = json.loads(self.path.read_text())
        except OSError as exc:
            raise RuntimeError(f"Failed to open file '{filename}' for reading: No such file or directory") from exc

    def get_kernels(self) -> list[Any]:
        return [_KernelInfo(name, count) for name, count in self.fields["kernels"]]

    def get_uuid(self) -> str:
        return str(self.path)


@dataclass
class _KernelInfo:
    name: str
    count: int

    def get_name(self) -> str:
        return self.name

    def get_num_args(self) -> int:
        return self.count


class Device:
    def __init__(self, npu: Npu, bdf: str | int) -> None:
        if isinstance(bdf, int):
            bdf = [*npu.devices, "none"][bdf]
        if bdf not in npu.devices:
            raise RuntimeError(f"No such device '{bdf}'")
        assert bdf == ADDRESS, "this is another card than the NPU"
        self.npu = npu
        self.images: dict[str, XclBin] = {}

    def register_xclbin(self, image: XclBin) -> str:
        self.images[image.get_uuid()] = image
        return image.get_uuid()


@dataclass(eq=False)
class Loaded:
    """A context on the hardware's side, which goes when nothing on the host's side refers to it any more."""

    npu: Npu
    array: FakeArray
    lost: bool = False  # the driver gave up on it
    gone: bool = False
    restarts: int = 0  # by the driver, behind a run that took too long
    last: threading.Thread | None = None  # of its runs, which go one behind the other


class HwContext:
    def __init__(self, device: Device, uuid: str) -> None:
        self.npu, self.image = device.npu, device.images[uuid]
        if refused := self.npu.refused_contexts if self.npu.devices else "(err=-19): No such device":
            raise RuntimeError(f"DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed {refused}")
        if self.npu.contexts >= self.npu.max_contexts:
            raise RuntimeError("DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed (err=-28): No space left on device")
        self.npu.contexts += 1
        self.npu.contexts_made += 1
        manifest = read_manifest(self.image.path.with_name(self.image.fields["manifest"]))
        chip = chip_named(manifest.chip.name)
        assert chip is not None
        layout = HeadLayout(chip, manifest.head_dim)
        library = build_kernels(layout, self.npu.kernels, defines=defines_of(manifest.products))
        self.npu.array = FakeArray(library, layout, manifest.teams)
        self.loaded = Loaded(self.npu, self.npu.array)

    def __del__(self) -> None:
        if hasattr(self, "loaded"):
            self.loaded.gone = True
            self.npu.contexts -= 1


class Kernel:
    def __init__(self, context: HwContext, name: str) -> None:
        if name not in [kernel.get_name() for kernel in context.image.get_kernels()]:
            raise RuntimeError(f"No such kernel '{name}'")
        self.context = context

    def group_id(self, index: int) -> int:
        if self.context.npu.hand_out_wrong_groups and index >= 3:
            return WRONG_GROUP
        return INSTRUCTION_GROUP if index == 1 else DATA_GROUP


class Memory(NamedTuple):
    """What a run has of a buffer, which it does not keep."""

    flags: Flags
    group: int
    device_side: NDArray[np.uint8]


class Bo:
    """Memory that has two sides."""

    def __init__(self, device: Device, size: int, flags: Flags, group: int) -> None:
        wanted = Flags.cacheable if group == INSTRUCTION_GROUP else Flags.host_only
        assert flags is wanted, f"a buffer of group {group} is {flags!r}, for the NPU it has to be {wanted!r}"
        self._take(device.npu, size)
        self.host = np.full(size, 0xA5, np.uint8)
        self.device_side = np.full(size, 0x5A, np.uint8)
        self.memory = Memory(flags, group, self.device_side)

    def _take(self, npu: Npu, size: int) -> None:
        if npu.buffer_bytes + size > npu.memory_limit:
            raise RuntimeError("DRM_IOCTL_AMDXDNA_CREATE_BO IOCTL failed (err=-11): Resource temporarily unavailable")
        self.npu, self.nbytes = npu, size
        npu.buffers += 1
        npu.buffer_bytes += size

    def __del__(self) -> None:
        if hasattr(self, "device_side"):
            self.npu.buffers -= 1
            self.npu.freed_beside.append(self.npu.contexts)
            self.npu.buffer_bytes -= self.nbytes

    def map(self) -> memoryview:
        return memoryview(self.host)

    def size(self) -> int:
        return self.nbytes

    def address(self) -> int:
        return self.device_side.ctypes.data

    def sync(self, direction: Direction, size: int, offset: int) -> None:
        if offset + size > self.nbytes:
            raise RuntimeError("Invalid offset and size when syncing BO (err=-22): Invalid argument")
        self.npu.syncs.append((direction, offset, size))
        part = slice(offset, offset + size)
        if direction is Direction.XCL_BO_SYNC_BO_TO_DEVICE:
            self.device_side[part] = self.host[part]
        else:
            self.host[part] = self.device_side[part]


class ExtBo(Bo):
    """A buffer without a memory group; its host's side may be memory of others, which it does not keep alive."""

    def __init__(self, device: Device, *arguments: Any) -> None:
        match arguments:
            case [int(size)]:
                super().__init__(device, size, Flags.host_only, DATA_GROUP)
                self.address_of_host = None
                return
            case [pointer, int(size)] if type(pointer).__name__ == "PyCapsule":
                address = _ADDRESS_OF(pointer, None)
            case _:
                raise TypeError("__init__(): incompatible constructor arguments. The following argument types are ...")
        if device.npu.user_pointers == "refused":
            raise RuntimeError("DRM_IOCTL_AMDXDNA_CREATE_BO IOCTL failed (err=-22): Invalid argument")
        if address % mmap.PAGESIZE or size % mmap.PAGESIZE:
            raise RuntimeError(f"User pointer {address:#x} must be page aligned. (err=-22): Invalid argument")
        self._take(device.npu, size)
        self.address_of_host = address
        self.npu.wrapped_bytes += size
        self.host = np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)
        self.device_side = self.host.copy()
        self.memory = Memory(Flags.host_only, DATA_GROUP, self.device_side)

    def __del__(self) -> None:
        if getattr(self, "address_of_host", None) is not None:
            self.npu.wrapped_bytes -= self.nbytes
            residency = ctypes.create_string_buffer(self.nbytes // mmap.PAGESIZE)
            address, size = ctypes.c_void_p(self.address_of_host), ctypes.c_size_t(self.nbytes)
            self.npu.unmapped_first += _LIBC.mincore(address, size, residency) != 0
        super().__del__()


@dataclass
class Status:
    """What the driver tells of a run; its thread has this, and nothing that would keep the context."""

    state: State = State.ERT_CMD_STATE_NEW
    is_readable: bool = True


class Run:
    def __init__(self, kernel: Kernel) -> None:
        self._context = kernel.context  # as a run of XRT does
        self._arguments: dict[int, Any] = {}
        self._status = Status()

    def set_arg(self, index: int, value: Any) -> None:
        if not isinstance(value, (int, Bo)):
            raise TypeError(f"set_arg(): incompatible function arguments: {index}, {value!r}")
        if isinstance(value, ExtBo) and self._context.npu.user_pointers == "cloned":
            value = value.memory._replace(device_side=value.device_side.copy())
        self._arguments[index] = value.memory if isinstance(value, Bo) else value

    def state(self) -> State:
        if not self._status.is_readable:
            del self  # as in `start`
            raise RuntimeError("DRM_IOCTL_AMDXDNA_GET_INFO IOCTL failed (err=-5): Input/output error")
        return self._status.state

    def start(self) -> None:
        loaded, status = self._context.loaded, self._status
        npu = loaded.npu
        fault = npu.faults.popleft() if npu.faults else "ok"
        if fault == "start fails" or loaded.lost:
            loaded.lost = True
            del self  # pyxrt is compiled: a traceback of its errors has no frame with the run in it
            raise RuntimeError("DRM_IOCTL_AMDXDNA_EXEC_CMD IOCTL failed (err=-5): Input/output error")
        assert status.state is not State.ERT_CMD_STATE_SUBMITTED, "a run is started while it is under way"
        status.state, status.is_readable = State.ERT_CMD_STATE_SUBMITTED, fault != "state fails"
        arguments = [self._arguments[index] for index in range(6)]
        work = loaded, status, fault, arguments, loaded.restarts, loaded.last
        thread = threading.Thread(target=_work, args=work, name="fake-npu", daemon=True)
        npu.threads.append(thread)
        if fault != "state fails":
            loaded.last = thread
        thread.start()


def _work(
    loaded: Loaded, status: Status, fault: str, arguments: list[Any], restarts: int, previous: threading.Thread | None
) -> None:
    loaded.npu.hold.wait()
    if previous is not None:
        previous.join()
    if fault == "no answer":
        return
    if fault == "state fails":
        loaded.npu.released.wait()
    with loaded.npu._order:
        status.state = State.ERT_CMD_STATE_ABORT if loaded.restarts != restarts else _end(loaded, fault, arguments)
        if status.state is State.ERT_CMD_STATE_TIMEOUT:
            loaded.restarts += 1


def _end(loaded: Loaded, fault: str, arguments: list[Any]) -> State:
    npu = loaded.npu
    npu.runs += 1
    if fault == "vanishes":
        npu.devices = ()
    if loaded.lost or fault in ("context lost", "vanishes"):
        loaded.lost = True
        return State.ERT_CMD_STATE_ABORT
    if fault == "timeout":
        return State.ERT_CMD_STATE_TIMEOUT
    if fault == "abort":
        return State.ERT_CMD_STATE_ABORT
    if fault == "stuck":
        npu.hangs.set()
        npu.released.wait()
    if loaded.gone:
        return State.ERT_CMD_STATE_ABORT
    opcode, stream, nbytes, *buffers = arguments
    assert opcode == 3 and stream.flags is Flags.cacheable and stream.group == INSTRUCTION_GROUP
    if fault == "no work" or any(buffer.group != DATA_GROUP for buffer in buffers):
        return State.ERT_CMD_STATE_COMPLETED  # as the hardware does: no error, and no work
    try:
        loaded.array.execute(stream.device_side[:nbytes].view(np.uint32), [buffer.device_side for buffer in buffers])
    except Hang:
        return State.ERT_CMD_STATE_TIMEOUT
    if loaded.array.most_buffers * npu.seconds_per_buffer > npu.run_limit_s:
        buffers[2].device_side[len(buffers[2].device_side) // 2 :] = 0xFF
        npu.timeouts += 1
        return State.ERT_CMD_STATE_TIMEOUT
    if fault == "wrong results":
        buffers[2].device_side[:64] ^= 0x40
    return State.ERT_CMD_STATE_COMPLETED
