"""The device of a benchmark: a software device only where it is asked for by name, and named beside every number."""

from __future__ import annotations

import contextlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.cli.bench_limits import Limits, measure_limits
from unicorn_async.cli.placement import placements
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import ConfigError, UnicornError
from unicorn_async.gpu.choice import device_candidates, select_device
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.instance import Instance
from unicorn_async.memory.choice import choose_device
from unicorn_async.memory.kv_plan import wanted_context
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.binding import CData
    from unicorn_async.gpu.device_info import DeviceInfo

    Extend = Callable[[Instance, DeviceInfo], tuple[str, CData] | None]

DEVICE_HELP = "index or part of the name (default: the fastest GPU); a software device is taken only when it is named"
ARGUMENT, DEVICE = 2, 1  # exit statuses: by what a script is refused


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
def opened_device(wanted: str | None, extend: Extend | None = None) -> Iterator[Device]:
    """Open the device that `chosen_info` names, and print what it is; `extend` says what else to enable of it.

    Raises:
        DeviceError, ConfigError: as that, or it can't be opened.
    """
    with Instance.create() as instance:
        info = select_device(instance.devices(), wanted)
        print(device_text(info), flush=True)
        extra = None if extend is None else extend(instance, info)
        with Device.open(instance, info, cache_dir=None, shader_dir=resource_dir("shaders"), extra=extra) as device:
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


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """The device that engines would take."""

    name: str
    driver: str
    software: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there can be no such engine."""

    status: int
    text: str


def check_fit(parser: argparse.ArgumentParser, model: str | Path, *configs: EngineConfig) -> ChosenDevice:
    """Return the device of the last engine; ends the script with one line if a model can't be opened like that.

    It is looked up in a process of its own: a driver that the script's own process had opened could stay awake, and the
    starts that it measures would find it so.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(look_up, model, configs).result()
    if isinstance(found, Refusal):
        parser.exit(found.status, f"{parser.prog}: {' '.join(found.text.split())}\n")
    return found


def look_up(model: str | Path, configs: tuple[EngineConfig, ...]) -> ChosenDevice | Refusal:
    """Plan the engines as they would be opened; it blocks, and reads no weights."""
    try:
        on_disk = ModelFiles.read(model, configs[0].weights)
        for config in configs:
            wanted_context(on_disk.config, config)
    except ConfigError as exc:
        return Refusal(ARGUMENT, str(exc))
    except UnicornError as exc:
        return Refusal(DEVICE, str(exc))
    try:
        for config in configs:
            check_device(config)
            places = placements(on_disk, config, on_disk.look_up(None))
            infos = [place.info for place in places if place.is_chosen and place.plan is not None]
            if not infos:
                return Refusal(DEVICE, "; ".join(f"{place.info.name}: {place.problem}" for place in places))
    except UnicornError as exc:
        return Refusal(DEVICE, str(exc))
    info = infos[0]
    return ChosenDevice(info.name, f"{info.driver_name} {info.driver_info}", info.is_software)


def check_device(config: EngineConfig) -> None:
    """See that there is a device that an engine may take; a software device may have to be asked for.

    Raises:
        VulkanUnavailableError, ConfigError: there is none.
    """
    with Instance.create() as instance:
        device_candidates(instance.devices(), config.device, allow_software=config.allow_software)
