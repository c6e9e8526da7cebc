"""Where a model would lie on the devices of this machine: planned as a load plans it, nothing is opened."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.engine.attending import settle_attention
from unicorn_async.errors import OutOfMemoryError
from unicorn_async.gpu.budget import HeapKind
from unicorn_async.gpu.choice import device_candidates
from unicorn_async.gpu.instance import Instance
from unicorn_async.hybrid.choice import FarDevice
from unicorn_async.memory.plan import plan_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.files import ModelFiles
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.memory.plan import MemoryPlan
    from unicorn_async.weights.placement import PlacementRow


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """One model on one device: the `plan`, or why there is none."""

    info: DeviceInfo
    plan: MemoryPlan | None
    problem: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values; sizes in bytes."""
        return {
            "device": self.info.name,
            "device_type": self.info.type.value,
            "software": self.info.is_software,
            "fits": self.plan is not None,
            "problem": self.problem,
            **memory_json(self.plan),
        }


def empty_devices() -> tuple[DeviceInfo, ...]:
    """Return this machine's devices as they are when nothing lies on them; no device is opened.

    Raises:
        VulkanUnavailableError: there is no Vulkan here.
    """
    with Instance.create() as instance:
        return tuple(
            replace(info, heaps=tuple(replace(heap, used=0) for heap in info.heaps)) for info in instance.devices()
        )


def plans_on(devices: Sequence[DeviceInfo], on_disk: ModelFiles, config: EngineConfig) -> list[DevicePlan]:
    """Plan a model on empty devices in the order in which a load tries them; the first that has room is the last one.

    Raises:
        ConfigError: an option can't work, or the device that is asked for is not there.
        DeviceError: there is no device that may be used. UnsupportedModelError: what is to attend can't.
    """
    candidates = device_candidates(devices, config.device, allow_software=config.allow_software)
    config, _ = settle_attention(on_disk, config, candidates)
    far = FarDevice(on_disk.config, config, devices)
    found: list[DevicePlan] = []
    for info in far.near(candidates):
        host_bytes = info.memory_bytes
        try:
            plan = plan_memory(
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
            found.append(DevicePlan(info, None, str(exc)))
        else:
            return [*found, DevicePlan(info, plan)]
    return found


def memory_json(plan: MemoryPlan | None) -> dict[str, object]:
    """Return what is planned, or that nothing is, as JSON values; sizes in bytes."""
    return {
        "max_context": 0 if plan is None else plan.kv.max_context,
        "room": None if plan is None else asdict(plan.placement.room),
        "placement": [] if plan is None else [_row_json(row) for row in plan.placement.rows()],
        "attention": None if plan is None or plan.far is None else plan.far.to_json(),
        "kv_cache_bytes": 0 if plan is None else plan.kv.nbytes,
        "first_kv_cache_bytes": 0 if plan is None else plan.kv.first_bytes,
        "staged_bytes": 0 if plan is None else plan.staged_bytes,
        "step_bytes": 0 if plan is None else plan.step_bytes,
        "planned_bytes": {} if plan is None else {h.value: plan.placement.nbytes(h) for h in HeapKind},
    }


def _row_json(row: PlacementRow) -> dict[str, object]:
    return {
        "group": row.group.value,
        "layers": row.layers,
        "bytes": row.nbytes,
        "heap": row.heap.value,
        "transforms": list(row.transforms),
    }
