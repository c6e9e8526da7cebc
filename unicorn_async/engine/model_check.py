"""Whether a model could be opened, looked at before the one that is open now is closed for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.engine.files import ModelFiles
from unicorn_async.engine.placement import empty_devices, plans_on
from unicorn_async.errors import ConfigError, OutOfMemoryError

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.checkpoint.partial_file import ModelDownload
    from unicorn_async.config import EngineConfig


def checked_options(
    model: str | Path, config: EngineConfig, *, is_default: bool, download: ModelDownload | None = None
) -> EngineConfig:
    """Check a model's files, and that a device would have room if nothing else were on it; returns fitting options.

    With `is_default` the scheme of the weights gives way where they are quantised already. It blocks on the disk.

    Raises:
        ConfigError, CheckpointError: an option or an adapter can't work, the files can't be used, or the load's trace
            can't be written.
        DownloadError: the model does not come.
        DeviceError: there is no such device, or the model is too large for it.
    """
    on_disk = ModelFiles.read(
        model, config.weights, config.loras, is_default=is_default, predicts=config.predicts, download=download
    )
    config = replace(config, weights=on_disk.scheme)
    limit = on_disk.config.max_position
    if config.max_context is not None and config.max_context > limit:
        raise ConfigError(f"max_context: expected at most the model's {limit} tokens, got {config.max_context}")
    _check_size(on_disk, config)
    if config.load_trace is not None:
        from unicorn_async.loader.trace import LoadTrace

        LoadTrace(config.load_trace)  # it can be written
    return config


def _check_size(on_disk: ModelFiles, config: EngineConfig) -> None:
    """Plan the model's memory on the devices as they will be at best, when the model that is open now is closed."""
    plans = plans_on(empty_devices(), on_disk, config)
    if all(plan.plan is None for plan in plans):
        raise OutOfMemoryError("\n".join(plan.problem or "" for plan in plans))
