"""One xclbin in one hardware context: changing between two of them takes milliseconds, and there are few."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from unicorn_async.errors import NpuBuildError, NpuContextLostError
from unicorn_async.npu.schedule import Argument
from unicorn_async.npu.xrt import xrt_errors

if TYPE_CHECKING:
    import pyxrt

    from unicorn_async.npu.buffer import Buffer
    from unicorn_async.npu.device import Device
    from unicorn_async.npu.manifest import Build

_OPCODE = 3  # run an instruction stream
_INSTRUCTIONS = 1  # number of that argument
_FIRST_BUFFER = 3  # after opcode, instructions and their size
KERNEL_PREFIX = "MLIR_AIE"


class Context:
    """A build, loaded; close it before the buffers that its runs use.

    `generation` counts how often it was made: what was made of an older one is of no use.
    """

    def __init__(self, device: Device, build: Build) -> None:
        """Load the build's xclbin.

        Raises:
            NpuBuildError: the xclbin has no fitting kernel, is for another chip, or is not the build's any more.
            NpuBusyError: no context or not enough columns are free.
        """
        self.device = device
        self.build = build
        self.generation = 0
        self._context: pyxrt.hw_context | None = None
        self._kernel: pyxrt.kernel | None = None
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        if build.chip is not device.chip:
            raise NpuBuildError(f"{build.xclbin}: built for {build.chip.name}, this is {device.chip.name}")
        self._image, self._name = self._read()
        self._open()
        self.instruction_group = self._group(_INSTRUCTIONS)
        self.groups = tuple(self._group(_FIRST_BUFFER + argument) for argument in Argument)

    @property
    def is_open(self) -> bool:
        """Whether runs can be made: not after `close`, nor after a `renew` that failed."""
        return self._kernel is not None

    @property
    def kernel(self) -> pyxrt.kernel:
        """The loaded kernel; the context must not be closed."""
        assert self._kernel is not None, "NPU context: used after it was closed"
        return self._kernel

    def make_run(self, name: str) -> Run:
        """Return a run of the loaded kernel; it is closed with the context, at the latest."""
        run = Run(self, name)
        self._runs.add(run)
        return run

    def renew(self) -> None:
        """Make a new context in place of one that the driver gave up on; buffers stay, no run may be under way.

        The old one is given back first, with all its runs: there may be no second one to be had.

        Raises:
            NpuContextLostError: the new one puts buffers elsewhere.
            NpuBusyError: none can be had any more.
        """
        self.close()
        self._open()
        groups = tuple(self._group(_FIRST_BUFFER + argument) for argument in Argument)
        if groups != self.groups or self._group(_INSTRUCTIONS) != self.instruction_group:
            self.close()
            raise NpuContextLostError(f"NPU context: made anew, its memory groups are {groups}, were {self.groups}")

    def close(self) -> None:
        """Give the context and its runs back; a second call does nothing.

        A run that has no end loses the NPU by this, and can't touch its buffers any more.
        """
        for run in list(self._runs):
            run.close()  # each holds the context, too
        self._kernel = None
        self._context = None

    def _read(self) -> tuple[pyxrt.xclbin, str]:
        """Return the xclbin, which is read this once, and its kernel: a context made anew has the kernels of the first.

        By then other ones may lie there, whose instructions and answers nobody has checked.
        """
        import pyxrt

        path = str(self.build.xclbin)
        with xrt_errors(f"reading {path}"):
            image = pyxrt.xclbin(path)
            kernels = [(kernel.get_name(), kernel.get_num_args()) for kernel in image.get_kernels()]
        self.build.check_file()
        fitting = [name for name, count in kernels if count >= _FIRST_BUFFER + len(Argument)]
        name = next((name for name in fitting if name.startswith(KERNEL_PREFIX)), None)
        if name is None:
            raise NpuBuildError(
                f"{path}: expected a kernel {KERNEL_PREFIX} with {_FIRST_BUFFER + len(Argument)} arguments,"
                f" got {kernels}"
            )
        return image, name

    def _open(self) -> None:
        import pyxrt

        with xrt_errors(f"loading {self.build.xclbin}"):
            uuid = self.device.handle.register_xclbin(self._image)
            self._context = pyxrt.hw_context(self.device.handle, uuid)
            self._kernel = pyxrt.kernel(self._context, self._name)
        self.generation += 1

    def _group(self, argument: int) -> int:
        with xrt_errors(f"NPU context: the memory group of argument {argument}"):
            return self.kernel.group_id(argument)


class Run:
    """A run's arguments, set one by one: calling a kernel swallows what does not fit."""

    _handle: pyxrt.run | None

    def __init__(self, context: Context, name: str) -> None:
        import pyxrt

        self.name = name
        with xrt_errors(f"{name}: making a run"):
            self._handle = pyxrt.run(context.kernel)

    @property
    def handle(self) -> pyxrt.run:
        """XRT's run; it must not be closed."""
        assert self._handle is not None, f"{self.name}: used after it was closed"
        return self._handle

    @property
    def is_closed(self) -> bool:
        """Whether it can't be started any more."""
        return self._handle is None

    def start(self, instructions: Buffer, instruction_bytes: int, buffers: tuple[Buffer, ...]) -> None:
        """Set all arguments, and start; the buffers stay untouched until its end is known.

        XRT's buffers are in no variable here, where an error's traceback would keep them beyond their `close`.
        """
        with xrt_errors(f"{self.name}: starting a run"):
            self.handle.set_arg(0, _OPCODE)
            self.handle.set_arg(_INSTRUCTIONS, instructions.handle)
            self.handle.set_arg(_INSTRUCTIONS + 1, instruction_bytes)
            for argument, buffer in enumerate(buffers, _FIRST_BUFFER):
                self.handle.set_arg(argument, buffer.handle)
            self.handle.start()

    def close(self) -> None:
        """Let go of the context; a second call does nothing."""
        self._handle = None
