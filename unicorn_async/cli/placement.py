"""Whether a model fits a device, and the room it leaves for keys and values: an estimate, nothing is allocated."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from unicorn_async.cli.amounts import size
from unicorn_async.config import EngineConfig
from unicorn_async.engine.kv_plan import plan_kv_cache
from unicorn_async.errors import OutOfMemoryError
from unicorn_async.gpu.instance import Instance

if TYPE_CHECKING:
    from unicorn_async.engine.startup import ModelOnDisk
    from unicorn_async.gpu.device_info import DeviceInfo


@dataclass(frozen=True, slots=True)
class Placement:
    """One model on one device; sizes in bytes. `max_context` is 0 where the model does not fit."""

    device: str
    software: bool
    available_bytes: int
    weight_bytes: int
    kv_bytes_full_context: int
    max_context: int
    reading: str  # how the files would be read now, and why

    def lines(self) -> list[str]:
        """Return what people want to know."""
        kind = " (SOFTWARE)" if self.software else ""
        verdict = f"fits, with a context of up to {self.max_context} tokens" if self.max_context else "does not fit"
        return [
            f"{self.device}{kind}: {verdict}",
            f"   weights {size(self.weight_bytes)}, KV cache {size(self.kv_bytes_full_context)} for one full context;"
            f" {size(self.available_bytes)} are available",
            f"   how it reads: {self.reading}",
        ]

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return asdict(self)


def placements(model: ModelOnDisk) -> list[Placement]:
    """Return an estimate for each device of this machine.

    Raises:
        VulkanUnavailableError: there is no Vulkan here.
    """
    with Instance.create() as instance:
        return [_placement(model, info) for info in instance.devices()]


def _placement(model: ModelOnDisk, info: DeviceInfo) -> Placement:
    options = EngineConfig(max_num_seqs=1)
    weights = model.plan.dest_bytes
    left = info.available_bytes - weights
    try:
        context = plan_kv_cache(model.config, options, left).max_context if left > 0 else 0
    except OutOfMemoryError:
        context = 0
    unlimited = 1 << 62
    full = plan_kv_cache(model.config, options, unlimited).nbytes
    reading = model.read_strategy(info).text()
    return Placement(info.name, info.is_software, info.available_bytes, weights, full, context, reading)
