"""The device of a benchmark: a software device only where it is asked for by name, and named beside every number."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.cli.bench_limits import Limits, measure_limits
from unicorn_async.engine.files import ModelFiles
from unicorn_async.gpu.choice import device_candidates, select_device
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.instance import Instance
from unicorn_async.memory.choice import choose_device
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device_info import DeviceInfo

DEVICE_HELP = "index or part of the name (default: the fastest GPU); a software device is taken only when it is named"


def device_text(info: DeviceInfo) -> str:
    """Name a device, its driver and its kind."""
    return f"{info.name}, {info.driver_name} {info.driver_info}, {'SOFTWARE device' if info.is_software else 'GPU'}"


def device_facts(info: DeviceInfo) -> dict[str, object]:
    """Return the same for a report."""
    return {"device": info.name, "driver": f"{info.driver_name} {info.driver_info}", "software": info.is_software}


def chosen_info(wanted: str | None) -> DeviceInfo:
    """Return the device that is wanted by index or part of its name, or the fastest GPU.

    Raises:
        VulkanUnavailableError: there is no GPU, and no device is wanted.
        ConfigError: `wanted` names no device, or several.
    """
    with Instance.create() as instance:
        return select_device(instance.devices(), wanted)


@contextlib.contextmanager
def opened_device(wanted: str | None) -> Iterator[Device]:
    """Open the device that `chosen_info` names, and print what it is.

    Raises:
        DeviceError, ConfigError: as that, or it can't be opened.
    """
    with Instance.create() as instance:
        info = select_device(instance.devices(), wanted)
        print(device_text(info), flush=True)
        with Device.open(instance, info, cache_dir=None, shader_dir=resource_dir("shaders")) as device:
            yield device


def model_device(path: str, config: EngineConfig) -> DeviceInfo:
    """Return the device that an engine would take: the first one, best first, that the model fits.

    Raises:
        ConfigError, CheckpointError, DeviceError: the model can't be opened like that.
    """
    model = ModelFiles.read(path, config.weights)
    with Instance.create() as instance:
        candidates = device_candidates(instance.devices(), config.device, allow_software=config.allow_software)
        passing, staging = model.transient_bytes, model.staging
        info, _ = choose_device(candidates, model.config, config, model.plan, transient_bytes=passing, staging=staging)
    return info


class DeviceLimits:
    """What devices can do, each measured once and printed."""

    def __init__(self) -> None:
        self._measured: dict[int, Limits] = {}

    def of(self, path: str, config: EngineConfig) -> tuple[Limits, EngineConfig]:
        """Return the limits of the device that a model fits, and the configuration by which it runs there.

        Raises:
            ConfigError, CheckpointError, DeviceError: as `model_device`.
        """
        info = model_device(path, config)
        if info.index not in self._measured:
            self._measured[info.index] = limits = measure_limits(str(info.index))
            print("\n".join([device_text(info), *limits.lines()]), flush=True)
        return self._measured[info.index], replace(config, device=str(info.index))
