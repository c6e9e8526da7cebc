"""What another device than the model's has of the KV cache, before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.memory.kv_plan import KVPlan
    from unicorn_async.npu.choice import NpuChoice


@dataclass(frozen=True, slots=True)
class FarPlan:
    """The far device, its cache, and how much of the near device's memory it takes.

    `device` is its name. Either `info` says which Vulkan device it is, or `npu` which NPU.
    """

    kv: KVPlan
    near_bytes: int
    device: str
    info: DeviceInfo | None = None
    npu: NpuChoice | None = None

    def to_json(self) -> dict[str, object]:
        """Return everything as JSON values; sizes in bytes."""
        return {"device": self.device, "kv_cache_bytes": self.kv.nbytes, "near_bytes": self.near_bytes}
