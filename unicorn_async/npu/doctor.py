"""Looks for what keeps an NPU from being used, from the bus up to pyxrt; each finding says what to do."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.errors import NpuUnavailableError
from unicorn_async.npu.geometry import CHIPS
from unicorn_async.npu.packages import driver_hint, install_hint, module_hint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unicorn_async.npu.geometry import Chip
    from unicorn_async.npu.host import AccelNode, NpuHost, PciDevice

MEMLOCK_BYTES = 64 << 20  # the first open of the device locks so much
# The oldest ones that are known to us from a release of linux-firmware; that older ones fail has not been seen.
_FIRMWARE = {"npu1": (1, 5, 2, 380), "npu2": (1, 0, 0, 63)}
# What we conclude from versions, limits and places; an XRT that opens the NPU shows that they do not matter.
_GUESSES = frozenset({"firmware", "memlock", "XRT", "XRT's NPU plugin", "pyxrt"})
_VERSION_ERRORS = (errno.EOPNOTSUPP, errno.EINVAL)
_IOMMU_ERRORS = (errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL, errno.ENOSPC)


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check; `remedy` is empty where all is well, and tells what else could be done in a note."""

    check: str
    ok: bool
    summary: str
    remedy: str = ""


def examine(host: NpuHost) -> tuple[Finding, ...]:
    """Check everything that can be seen without XRT, in the order in which things build on each other.

    Where guesses alone speak against the NPU, XRT is asked: if it opens the NPU, they become notes.
    """
    found = find_npu(host)
    if found is None:
        devices = ", ".join(device.device for device in host.amd_devices()) or "none"
        known = ", ".join(f"1022:{chip.pci_device[2:]} ({chip.name})" for chip in CHIPS)
        return (
            Finding(
                "NPU",
                False,
                f"no NPU of AMD on the PCI bus (devices of AMD: {devices})",
                f"known are {known}; on such a machine, switch the NPU (IPU) on in the firmware's set-up",
            ),
        )
    device, chip = found
    findings = (
        Finding("NPU", True, f"{chip.name}, 1022:{device.device[2:]} at {device.address}"),
        *_kernel(host, device, chip),
        *_xrt(host),
    )
    failed = {finding.check for finding in findings if not finding.ok}
    if failed and failed <= _GUESSES and host.opens_device(device.address):
        return tuple(finding if finding.ok else _overruled(finding) for finding in findings)
    return findings


def _overruled(finding: Finding) -> Finding:
    return replace(finding, ok=True, summary=f"{finding.summary}; but XRT opens the NPU")


def first_problem(host: NpuHost) -> Finding | None:
    """Return the first check that failed, or None."""
    return next((finding for finding in examine(host) if not finding.ok), None)


def npu_chip(host: NpuHost) -> Chip:
    """Return the machine's chip.

    Raises:
        NpuUnavailableError: it has none.
    """
    found = find_npu(host)
    if found is None:
        raise NpuUnavailableError("no NPU of AMD on the PCI bus")
    return found[1]


def require_npu(host: NpuHost) -> tuple[PciDevice, Chip]:
    """Return the machine's NPU, of which nothing that `examine` sees keeps it from being used.

    Raises:
        NpuUnavailableError: there is none, or something does; the message says what, and what to do.
    """
    problem = first_problem(host)
    if problem is not None:
        raise NpuUnavailableError(f"{problem.summary}; {problem.remedy}")
    found = find_npu(host)
    assert found is not None, "an NPU is the first thing that is looked for"
    return found


def find_npu(host: NpuHost) -> tuple[PciDevice, Chip] | None:
    """Return the machine's NPU, usable or not."""
    for device in host.amd_devices():
        for chip in CHIPS:
            if device.device == chip.pci_device:
                return device, chip
    return None


def _kernel(host: NpuHost, device: PciDevice, chip: Chip) -> Iterator[Finding]:
    release = host.kernel_release()
    if not host.has_driver():
        yield Finding(
            "driver",
            False,
            f"the kernel ({release}) has not loaded amdxdna",
            "it is part of Linux 6.14 and newer (`modprobe amdxdna`); for older kernels there is AMD's DKMS package",
        )
        return
    yield _driver(host, release)
    node = next((node for node in host.accel_nodes() if node.device == device.device), None)
    yield _firmware(host, device, chip, node)
    if node is None:
        yield Finding(
            "device file",
            False,
            "amdxdna is loaded, but there is no /dev/accel/accel* for the NPU",
            "the driver refused the NPU: `dmesg | grep amdxdna` says why; often the firmware, or an IOMMU that is off",
        )
        return
    yield Finding("device file", True, str(node.path))
    yield _memlock(host)
    yield _opening(host, node)


def _driver(host: NpuHost, release: str) -> Finding:
    origin = "the kernel's own" if host.has_in_tree_driver() else "not the kernel's own"
    return Finding("driver", True, f"amdxdna, {origin}, Linux {release}", driver_hint(host) or "")


def _firmware(host: NpuHost, device: PciDevice, chip: Chip, node: AccelNode | None) -> Finding:
    remedy = "install a current linux-firmware (files in /lib/firmware/amdnpu), then reboot"
    if node is None or node.firmware is None:
        files = host.firmware_files(device.device)
        if files:
            return Finding("firmware", True, f"{files[-1].name} is installed; the driver tells no version")
        folder = f"/lib/firmware/amdnpu/{device.device[2:]}_*"
        return Finding("firmware", False, f"none: the driver tells no version, and {folder} is empty", remedy)
    version, oldest = _version(node.firmware), _FIRMWARE[chip.name]
    if version < oldest:
        return Finding("firmware", False, f"{node.firmware} is older than {'.'.join(map(str, oldest))}", remedy)
    return Finding("firmware", True, node.firmware)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in text.split("."))


def _memlock(host: NpuHost) -> Finding:
    limit = host.memlock_bytes()
    if limit is not None and limit < MEMLOCK_BYTES:
        return Finding(
            "memlock",
            False,
            f"{limit:,} bytes may be locked, opening the NPU locks {MEMLOCK_BYTES:,}, and its buffers more",
            "`sudo prlimit --pid $$ --memlock=unlimited` in this shell, for now; for good, `[Service]` with"
            " `LimitMEMLOCK=infinity` in /etc/systemd/system/user@.service.d/memlock.conf, then log in again"
            " (limits.d does not reach terminals under user@.service), or in a service's own unit",
        )
    return Finding("memlock", True, "unknown" if limit is None else "enough")


def _opening(host: NpuHost, node: AccelNode) -> Finding:
    number = host.open_node(node.path)
    if not number:
        return Finding("access", True, f"{node.path} can be opened")
    summary = f"opening {node.path}: {os.strerror(number)} ({number})"
    if number in (errno.EACCES, errno.EPERM):
        remedy = "add the user to the group render: `sudo usermod -aG render $USER`, then log in again"
    elif number in _VERSION_ERRORS and host.has_iommu() and (hint := driver_hint(host)) is not None:
        remedy = hint
    elif number in _IOMMU_ERRORS:
        state = "runs" if host.has_iommu() else "does not run"
        remedy = (
            f"the NPU needs the IOMMU and shared virtual addressing (an IOMMU {state}): switch it on in the firmware's"
            " set-up, and take amd_iommu=off or iommu=off out of the kernel's command line"
        )
    elif number in (errno.ENOMEM, errno.EAGAIN):
        remedy = "raise the memlock limit (`sudo prlimit --pid $$ --memlock=unlimited` in this shell)"
    else:
        remedy = "`dmesg | grep amdxdna` says more"
    return Finding("access", False, summary, remedy)


def _xrt(host: NpuHost) -> Iterator[Finding]:
    core = host.library("libxrt_core.so.2")
    if core is None:
        yield Finding("XRT", False, "libxrt_core.so.2 is not installed", f"install XRT: {install_hint(host)}")
        return
    yield Finding("XRT", True, str(core))
    plugin = host.library("libxrt_driver_xdna.so.2")
    if plugin is None or plugin.parent != core.parent:
        where = f"it is in {plugin.parent}, XRT in {core.parent}" if plugin else "it is not installed"
        yield Finding(
            "XRT's NPU plugin",
            False,
            f"libxrt_driver_xdna.so.2: {where}; without it XRT finds no NPU",
            f"install the plugin of the same version as XRT, into the same place: {install_hint(host)}",
        )
    else:
        yield Finding("XRT's NPU plugin", True, str(plugin))
    yield _pyxrt(host)


def _pyxrt(host: NpuHost) -> Finding:
    files = host.pyxrt_files()
    suffixes = host.module_suffixes()
    fitting = next((path for path in files if path.name.endswith(suffixes)), None)
    if fitting is None and files:
        names = ", ".join(path.name for path in files)
        return Finding(
            "pyxrt",
            False,
            f"pyxrt is built for another Python: this one takes {suffixes[0]}, found {names}",
            module_hint(host, files[0], fits=False),
        )
    if fitting is None:
        return Finding(
            "pyxrt",
            False,
            "pyxrt is not installed",
            f"it comes with XRT: {install_hint(host)}",
        )
    if fitting.parent in host.own_python_path():
        return Finding("pyxrt", True, str(fitting))
    return Finding("pyxrt", False, f"{fitting} is not on Python's path", module_hint(host, fitting, fits=True))
