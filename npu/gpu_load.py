"""Keeps a Vulkan GPU busy with copies, so that the NPU is measured while both want memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from unicorn_async.gpu.choice import select_device
from unicorn_async.gpu.command import CommandPool
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.instance import Instance
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from unicorn_async.gpu.device_info import DeviceInfo

_BYTES = 64 << 20
_COPIES = 8


def check_gpu(wanted: str | None) -> None:
    """Look for the GPU that a load would have.

    Raises:
        VulkanUnavailableError, ConfigError: there is none, or none of this index or name.
    """
    with Instance.create() as instance:
        _choose(instance, wanted)


def _choose(instance: Instance, wanted: str | None) -> DeviceInfo:
    return select_device(instance.devices(), wanted, allow_software=wanted is not None)


class GpuLoad:
    """Copies between two buffers of a GPU for as long as it is entered; `bytes_copied` says how much was done.

    What ends the copies early is raised by `check`, and on leaving.
    """

    def __init__(self, wanted: str | None) -> None:
        """Choose the GPU by index or name; a software device only if it is named."""
        self.bytes_copied = 0
        self.name = ""
        self._wanted = wanted
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unicorn-npu-gpu-load")
        self._ready = threading.Event()
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def check(self) -> None:
        """Raise what has ended the copies, if anything has."""
        if self._error is not None:
            raise self._error

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if value is None:
            self.check()

    def _run(self) -> None:
        try:
            with Instance.create() as instance:
                info = _choose(instance, self._wanted)
                self.name = f"{info.name}, {info.driver_name} {info.driver_info}"
                with Device.open(instance, info, cache_dir=None, shader_dir=resource_dir("shaders")) as device:
                    self._copy(device)
        except BaseException as exc:
            self._error = exc
        finally:
            self._ready.set()

    def _copy(self, device: Device) -> None:
        pool = CommandPool(device, device.compute)
        buffers = [device.memory.allocate(_BYTES, MemoryKind.DEVICE, name=f"load {side}") for side in "ab"]
        try:
            recorder = pool.recorder()
            for number in range(_COPIES):
                recorder.copy(buffers[number % 2], 0, buffers[1 - number % 2], 0, _BYTES)
                recorder.barrier()
            commands = recorder.end()
            self._ready.set()
            while True:
                device.compute.timeline.wait(device.compute.submit([commands]), timeout_s=60)
                self.bytes_copied += _COPIES * _BYTES
                if self._stop.is_set():
                    break
        finally:
            for buffer in buffers:
                buffer.close()
            pool.close()
