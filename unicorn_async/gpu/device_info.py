"""What a Vulkan device is and can do, and which one to take."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError, OutOfMemoryError, VulkanUnavailableError
from unicorn_async.gpu.host import HostGraphics

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unicorn_async.gpu.tuned import Tuned


class DeviceType(Enum):
    """The kind of a device; a software device runs the shaders on the CPU."""

    DISCRETE = "discrete"
    INTEGRATED = "integrated"
    VIRTUAL = "virtual"
    SOFTWARE = "software"
    OTHER = "other"


_SPEED = (DeviceType.DISCRETE, DeviceType.INTEGRATED, DeviceType.VIRTUAL, DeviceType.OTHER, DeviceType.SOFTWARE)


@dataclass(frozen=True, slots=True)
class MemoryHeap:
    """One memory heap; `budget` is what this process may use of it in all, `used` what it uses already, in bytes."""

    nbytes: int
    device_local: bool
    budget: int
    used: int

    @property
    def available_bytes(self) -> int:
        """What may still be allocated."""
        return max(0, self.budget - self.used)


@dataclass(frozen=True, slots=True)
class CooperativeMatrixShape:
    """One product A(m, k) · B(k, n) + C(m, n) of VK_KHR_cooperative_matrix; types are "f16", "f32", "s8", …"""

    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    result: str
    scope: str

    @property
    def feature(self) -> str | None:
        """Its name in a shader's `requires`; None where the types don't pair up or the scope is not a subgroup."""
        if self.a != self.b or self.c != self.result or self.scope != "subgroup":
            return None
        return f"cooperative_matrix_{self.a}_{self.result}_{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A physical device's identity, memory, features and limits, as its driver reports them.

    `features` holds the optional features by the names that shaders use in `requires`; `missing` holds what every
    device must have and this one lacks, by Vulkan's names. Sizes are in bytes unless the name says otherwise. `tuned`
    is what was measured on the device to be faster than the rules' choice of kernels; nothing until it is read.
    """

    index: int
    name: str
    type: DeviceType
    driver_name: str
    driver_info: str
    driver_version: int
    api_version: tuple[int, int, int]
    vendor_id: int
    device_id: int
    device_uuid: str
    heaps: tuple[MemoryHeap, ...]
    subgroup_size: int
    min_subgroup_size: int
    max_subgroup_size: int
    cooperative_matrix: tuple[CooperativeMatrixShape, ...]
    integer_dot: bool  # 4×8-bit products are accelerated; a device may have the feature without
    rebar: bool  # the CPU can map all of the device's memory
    float16: bool
    int8: bool
    storage16: bool
    storage8: bool
    memory_budget: bool
    external_memory_host: bool
    host_pointer_alignment: int  # of imported host memory; 0 without external_memory_host
    max_shared_memory: int
    max_push_constants: int
    max_workgroup_size: tuple[int, int, int]
    max_workgroup_invocations: int
    max_workgroup_count: tuple[int, int, int]
    max_storage_range: int
    max_allocation: int
    max_allocation_count: int
    timestamp_period_ns: float
    features: frozenset[str]
    missing: tuple[str, ...]
    tuned: Tuned = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_software(self) -> bool:
        """Whether the CPU does the device's work."""
        return self.type is DeviceType.SOFTWARE

    @property
    def shares_host_memory(self) -> bool:
        """Whether host heaps are the same memory as the device's own."""
        return self.type is not DeviceType.DISCRETE

    @property
    def available_bytes(self) -> int:
        """What may still be allocated for tensors, over all heaps that may hold them."""
        return sum(h.available_bytes for h in self.heaps if h.device_local or self.shares_host_memory)

    @property
    def memory_bytes(self) -> int:
        """Size of all heaps that may hold tensors."""
        return sum(h.nbytes for h in self.heaps if h.device_local or self.shares_host_memory)

    def lacks(self, requires: Iterable[str]) -> tuple[str, ...]:
        """Return those of `requires`, names as in a shader manifest, that the device does not have."""
        return tuple(name for name in requires if name not in self.features)

    def to_json(self) -> dict[str, object]:
        """Return everything that the driver reports as JSON values."""
        fields = asdict(self)
        del fields["tuned"]
        fields["type"] = self.type.value
        fields["features"] = sorted(self.features)
        fields["api_version"] = ".".join(map(str, self.api_version))
        fields["software"] = self.is_software
        fields["available_bytes"] = self.available_bytes
        return fields


def device_candidates(
    devices: Sequence[DeviceInfo], wanted: str | None, *, allow_software: bool = False, host: HostGraphics | None = None
) -> tuple[DeviceInfo, ...]:
    """Return the devices that may be used, best first: the one that is `wanted` by index or part of its name, or GPUs.

    A software device is among them only when it is wanted by name or index, or with `allow_software` and without a GPU.
    Devices that lack what every kernel needs are left out, unless all do.

    Raises:
        VulkanUnavailableError: there is no device, or no GPU among them.
        ConfigError: `wanted` names no device, or several.
    """
    host = host or HostGraphics()
    if not devices:
        raise VulkanUnavailableError("no Vulkan device found" + why_no_gpu(host))
    if wanted is not None:
        return (_by_name(devices, wanted),)
    candidates = [d for d in devices if not d.is_software]
    if not candidates and allow_software:
        candidates = list(devices)
    if not candidates:
        raise VulkanUnavailableError(
            "no GPU found, only a software device"
            + why_no_gpu(host)
            + f"; to use it all the same, ask for it by name:{_listing(devices)}"
        )
    usable = [d for d in candidates if not d.missing] or candidates
    return tuple(sorted(usable, key=lambda d: (_SPEED.index(d.type), -d.memory_bytes, d.index)))


def select_device(
    devices: Sequence[DeviceInfo],
    wanted: str | None,
    *,
    needed_bytes: int = 0,
    allow_software: bool = False,
    host: HostGraphics | None = None,
) -> DeviceInfo:
    """Return the best of the `device_candidates` that has `needed_bytes` left.

    Raises:
        VulkanUnavailableError, ConfigError: as `device_candidates`.
        OutOfMemoryError: no device has `needed_bytes` left.
    """
    candidates = device_candidates(devices, wanted, allow_software=allow_software, host=host)
    for device in candidates:
        if device.available_bytes >= needed_bytes:
            return device
    largest = max(candidates, key=lambda d: d.available_bytes)
    raise OutOfMemoryError(_too_large(largest, needed_bytes, host or HostGraphics()))


def _by_name(devices: Sequence[DeviceInfo], wanted: str) -> DeviceInfo:
    if wanted.strip().isdecimal():
        for device in devices:
            if device.index == int(wanted):
                return device
        raise ConfigError(f"device {wanted}: there is no device of this index; there are:{_listing(devices)}")
    found = [d for d in devices if wanted.casefold() in d.name.casefold()] if wanted.strip() else []
    if not found:
        raise ConfigError(f"device {wanted!r}: no device has this in its name; there are:{_listing(devices)}")
    if len(found) > 1:
        raise ConfigError(f"device {wanted!r}: fits {len(found)} devices, give an index:{_listing(found)}")
    return found[0]


def _listing(devices: Sequence[DeviceInfo]) -> str:
    return "".join(f"\n  {d.index}: {d.name} ({d.type.value}, {d.driver_name})" for d in devices)


def why_no_gpu(host: HostGraphics) -> str:
    """Return what the kernel says about the lack of a GPU, and what helps; to be put after "no GPU"."""
    nodes = host.unreadable_render_nodes()
    if nodes:
        names = ", ".join(str(node.path) for node in nodes)
        group = nodes[0].group
        return (
            f"; there is a GPU at {names}, but this user may not open it: join group `{group}`"
            f" (sudo usermod -aG {group} $USER, then log in again)"
        )
    if host.has_render_node():
        return "; the kernel drives a GPU, but its Vulkan driver is not installed (Debian: mesa-vulkan-drivers)"
    return "; the kernel drives no GPU (/dev/dri/renderD* is absent)"


def _too_large(device: DeviceInfo, needed_bytes: int, host: HostGraphics) -> str:
    return (
        f"{device.name}: {_gib(needed_bytes)} needed, {_gib(device.available_bytes)} available"
        f" of {_gib(device.memory_bytes)}{shared_memory_text(device, host)}"
    )


def shared_memory_text(device: DeviceInfo, host: HostGraphics) -> str:
    """Return what the kernel says about an AMD APU's memory, and what raises it; to be put after what is missing."""
    if device.type is not DeviceType.INTEGRATED:
        return ""
    return "".join(
        f"; {card.name}: VRAM {_gib(card.vram_used)} of {_gib(card.vram_total)} used"
        f", GTT {_gib(card.gtt_used)} of {_gib(card.gtt_total)} used"
        " (the kernel option ttm.pages_limit raises GTT, in pages of 4 KiB)"
        for card in host.amd_memory()
    )


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB ({nbytes} bytes)"
