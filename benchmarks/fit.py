"""Whether a model has room on a device for what a script asks of it, before the script starts its first process.

It is looked up in a process of its own: a driver that the script's own process had opened could stay awake, and the
starts that it measures would find it so.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.cli.placement import placements
from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import ConfigError, UnicornError
from unicorn_async.gpu.choice import device_candidates
from unicorn_async.gpu.instance import Instance
from unicorn_async.memory.kv_plan import wanted_context

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from unicorn_async.config import EngineConfig

ARGUMENT, DEVICE = 2, 1  # exit statuses: by what a script is refused


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
    """Return the device of the last engine; ends the script with one line if a model can't be opened like that."""
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
