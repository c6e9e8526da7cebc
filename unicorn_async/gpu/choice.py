"""Which Vulkan device to take, and what to say where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError, OutOfMemoryError, VulkanUnavailableError
from unicorn_async.gpu.device_info import DeviceType
from unicorn_async.gpu.host import HostGraphics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.gpu.device_info import DeviceInfo

_SPEED = (DeviceType.DISCRETE, DeviceType.INTEGRATED, DeviceType.VIRTUAL, DeviceType.OTHER, DeviceType.SOFTWARE)


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
