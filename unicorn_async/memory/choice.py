"""The device that a model is to run on, among those that may run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import OutOfMemoryError
from unicorn_async.memory.plan import NO_STAGING, plan_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.loader.staging_plan import StagingNeed
    from unicorn_async.memory.plan import FarPlanner, MemoryPlan
    from unicorn_async.models.spec import ModelSpec
    from unicorn_async.weights.plan import LoadPlan


def choose_device(
    devices: Sequence[DeviceInfo],
    model: ModelSpec,
    options: EngineConfig,
    plan: LoadPlan,
    *,
    transient_bytes: int = 0,
    staging: StagingNeed = NO_STAGING,
    far: FarPlanner | None = None,
) -> tuple[DeviceInfo, MemoryPlan]:
    """Return the first of the devices, best first, that the model fits, and its plan there.

    `far` plans what another device has of the model, if one does.

    Raises:
        ConfigError: as `plan_memory`.
        OutOfMemoryError: it fits none; the messages of all are in it.
    """
    errors: list[OutOfMemoryError] = []
    for info in devices:
        try:
            return info, plan_memory(
                model, options, plan, info, transient_bytes=transient_bytes, staging=staging, far=far
            )
        except OutOfMemoryError as exc:
            errors.append(exc)
    raise OutOfMemoryError("\n".join(map(str, errors)))
