"""Whether a model could be opened, looked at before the one that is open now is closed for it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.engine.files import ModelFiles
from unicorn_async.errors import ConfigError, OutOfMemoryError
from unicorn_async.gpu.choice import device_candidates
from unicorn_async.gpu.instance import Instance
from unicorn_async.hybrid.choice import FarDevice, fit_options
from unicorn_async.memory.plan import plan_memory

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.config import EngineConfig


def checked_options(model: str | Path, config: EngineConfig, *, is_default: bool) -> EngineConfig:
    """Check a model's files, and that a device would have room if nothing else were on it; returns fitting options.

    With `is_default` the scheme of the weights gives way where they are quantised already. It blocks on the disk.

    Raises:
        ConfigError, CheckpointError: an option or an adapter can't work, the files can't be used, or the load's trace
            can't be written.
        DeviceError: there is no such device, or the model is too large for it.
    """
    on_disk = ModelFiles.read(model, config.weights, config.loras, is_default=is_default)
    config = replace(config, weights=on_disk.scheme)
    limit = on_disk.config.max_position
    if config.max_context is not None and config.max_context > limit:
        raise ConfigError(f"max_context: expected at most the model's {limit} tokens, got {config.max_context}")
    _check_size(on_disk, fit_options(on_disk.config, config))
    if config.load_trace is not None:
        from unicorn_async.loader.trace import LoadTrace

        LoadTrace(config.load_trace)  # it can be written
    return config


def _check_size(on_disk: ModelFiles, config: EngineConfig) -> None:
    """Plan the model's memory on the devices as they will be at best, when the model that is open now is closed."""
    with Instance.create() as instance:
        devices = [
            replace(info, heaps=tuple(replace(heap, used=0) for heap in info.heaps)) for info in instance.devices()
        ]
    far = FarDevice(on_disk.config, config, devices)
    errors: list[OutOfMemoryError] = []
    for info in far.near(device_candidates(devices, config.device, allow_software=config.allow_software)):
        host_bytes = info.memory_bytes
        try:
            plan_memory(
                on_disk.config,
                config,
                on_disk.plan,
                info,
                transient_bytes=on_disk.transient_bytes,
                staging=on_disk.staging,
                host_bytes=host_bytes,
                far=partial(far.plan, host_bytes=host_bytes),
            )
        except OutOfMemoryError as exc:
            errors.append(exc)
        else:
            return
    raise OutOfMemoryError("\n".join(map(str, errors)))
