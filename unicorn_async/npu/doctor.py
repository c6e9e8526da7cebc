"""Looks for what keeps an NPU from being used, from the bus up to pyxrt; each finding says what to do."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unicorn_async.errors import NpuUnavailableError
from unicorn_async.npu.geometry import CHIPS
from unicorn_async.npu.memlock import LEAST_BYTES, RAISE_HINT
from unicorn_async.npu.packages import (
    driver_hint,
    firmware_hint,
    install_hint,
    load_hint,
    module_hint,
    refusal_hint,
    run_hint,
    version_hint,
)
from unicorn_async.npu.xrt import told_number

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from unicorn_async.npu.geometry import Chip
    from unicorn_async.npu.host import AccelNode, NpuHost, PciDevice

_CORE, _PLUGIN = "libxrt_core.so.2", "libxrt_driver_xdna.so.2"
# The oldest ones that are known to us from a release of linux-firmware; that older ones fail has not been seen.
_FIRMWARE = {"npu1": (1, 5, 2, 380), "npu2": (1, 0, 0, 63)}
# With older ones others' first runs ended with ABORT.
_FIRMWARE_OF_RUNS = {"npu1": (1, 5, 5, 391)}
# What we conclude from versions, limits and places; an XRT that opens the NPU shows that they do not matter.
_GUESSES = frozenset({"firmware", "memlock", "XRT", "XRT's NPU plugin", "pyxrt"})
_MEMLOCK_ERRORS = (errno.ENOMEM, errno.EAGAIN)
_ACCESS_REMEDIES = {
    errno.EACCES: "add the user to the group render: `sudo usermod -aG render $USER`, then log in again",
    errno.EPERM: (
        "something other than the file's mode forbids it, as the device policy of a container does: start it with the"
        " device, such as `--device /dev/accel/accel0`, or allow it in the service's unit (DeviceAllow)"
    ),
}
_MISSING_LIBRARY = re.compile(r"(\S+\.so[.\d]*): cannot open shared object file")
# Of the device file, which is opened before any version plays a part: shared virtual addressing was not bound.
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
    if failed and failed <= _GUESSES and host.opening_failure(device.address) is None:
        return tuple(finding if finding.ok else _overruled(finding) for finding in findings)
    return findings


def _overruled(finding: Finding) -> Finding:
    return replace(finding, ok=True, summary=f"{finding.summary}; but XRT opens the NPU")


def first_problem(host: NpuHost) -> Finding | None:
    """Return the first check that failed, or None."""
    return next((finding for finding in examine(host) if not finding.ok), None)


def opening_by_xrt(host: NpuHost) -> Finding:
    """Have XRT open the NPU of a machine on which `examine` found nothing wrong: its plugin asks the driver more."""
    device, chip = require_npu(host)
    failure = host.opening_failure(device.address)
    if failure is None:
        return Finding("XRT and the NPU", True, f"XRT opens the {chip.name}")
    return Finding("XRT and the NPU", False, f"XRT does not open the NPU: {failure}", _failure_remedy(host, failure))


def _failure_remedy(host: NpuHost, failure: str) -> str:
    """Return what to do about XRT's own words."""
    if (missing := _MISSING_LIBRARY.search(failure)) is not None:
        name = missing.group(1).rpartition("/")[2]
        found = host.library(name)
        if found is None:
            return f"{name} is not installed: {install_hint(host)}"
        return f"{name} is in {found.parent}, where the loader does not look: `export LD_LIBRARY_PATH={found.parent}`"
    number = told_number(failure)
    if number in _MEMLOCK_ERRORS:
        return RAISE_HINT
    if number in _ACCESS_REMEDIES:
        return _ACCESS_REMEDIES[number]
    if number in (errno.EOPNOTSUPP, errno.EINVAL):
        return version_hint(host)
    if number == errno.ENODEV:
        return (
            "XRT's NPU plugin finds no NPU, or is not of the same version as XRT, which then does not load it; if it"
            f" is, {version_hint(host)}"
        )
    return "`dmesg | grep -E 'amdxdna|xdna_mailbox'` may say more"


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
            load_hint(host),
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
            refusal_hint(host),
        )
        return
    yield Finding("device file", True, str(node.path))
    yield _memlock(host)
    yield _opening(host, node)


def _driver(host: NpuHost, release: str) -> Finding:
    origin = "the kernel's own" if host.has_in_tree_driver() else "not the kernel's own"
    return Finding("driver", True, f"amdxdna, {origin}, Linux {release}", driver_hint(host) or "")


def _firmware(host: NpuHost, device: PciDevice, chip: Chip, node: AccelNode | None) -> Finding:
    remedy = firmware_hint(host)
    if node is None or node.firmware is None:
        files = host.firmware_files(device)
        if files:
            return Finding("firmware", True, f"{files[-1].name} is installed; the driver tells no version")
        folders = " or ".join(f"/lib/firmware/amdnpu/{name}" for name in host.firmware_folders(device))
        return Finding("firmware", False, f"none: the driver tells no version, and nothing is in {folders}", remedy)
    version, oldest = _version(node.firmware), _FIRMWARE[chip.name]
    if version < oldest:
        return Finding("firmware", False, f"{node.firmware} is older than {'.'.join(map(str, oldest))}", remedy)
    of_runs = _FIRMWARE_OF_RUNS.get(chip.name, oldest)
    note = (
        f"it is older than {'.'.join(map(str, of_runs))}, with which others' kernels ran: where runs end with ABORT and"
        f" the kernel's log has `xdna_mailbox … ret -22` or `Command bo size … too large`, {run_hint(host)}"
    )
    return Finding("firmware", True, node.firmware, note if version < of_runs else "")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in text.split("."))


def _memlock(host: NpuHost) -> Finding:
    limit = host.memlock_bytes()
    if limit is not None and limit < LEAST_BYTES:
        summary = f"{limit:,} bytes may be locked, opening the NPU locks {LEAST_BYTES:,}, and its buffers more"
        return Finding("memlock", False, summary, RAISE_HINT)
    return Finding("memlock", True, "unknown" if limit is None else "enough")


def _opening(host: NpuHost, node: AccelNode) -> Finding:
    number = host.open_node(node.path)
    if not number:
        return Finding("access", True, f"{node.path} can be opened")
    summary = f"opening {node.path}: {os.strerror(number)} ({number})"
    if number in _ACCESS_REMEDIES:
        remedy = _ACCESS_REMEDIES[number]
    elif number in _IOMMU_ERRORS:
        remedy = _iommu_remedy(host)
    elif number in _MEMLOCK_ERRORS:
        remedy = RAISE_HINT
    else:
        remedy = "`dmesg | grep amdxdna` says more"
    return Finding("access", False, summary, remedy)


def _iommu_remedy(host: NpuHost) -> str:
    found = " ".join(word for word in host.command_line() if "iommu" in word) or "nothing of an IOMMU"
    if host.has_iommu():
        return (
            "the driver could not bind shared virtual addressing, though an IOMMU runs: others needed `amd_iommu=on"
            f" iommu=pt` on the kernel's command line (this one has {found}), and a reboot; `dmesg | grep amdxdna`"
        )
    return (
        "the NPU needs the IOMMU and shared virtual addressing, and an IOMMU does not run: switch it on in the"
        f" firmware's set-up, and take amd_iommu=off or iommu=off out of the kernel's command line (it has {found})"
    )


def _xrt(host: NpuHost) -> Iterator[Finding]:
    core = host.library(_CORE)
    if core is None:
        yield Finding("XRT", False, f"{_CORE} is not installed", f"install XRT: {install_hint(host)}")
        return
    yield Finding("XRT", True, str(core))
    folders = [path.parent for path in host.libraries(_PLUGIN)]
    if core.parent not in folders:
        where = f"it is in {folders[0]}, XRT in {core.parent}" if folders else "it is not installed"
        summary = f"{_PLUGIN}: {where}; without it XRT finds no NPU"
        yield Finding("XRT's NPU plugin", False, summary, _plugin_remedy(host, core))
    else:
        yield Finding("XRT's NPU plugin", True, str(core.with_name(_PLUGIN)))
    yield _pyxrt(host)


def _plugin_remedy(host: NpuHost, core: Path) -> str:
    """Return what to do about an XRT without the plugin; another one may have it, and be hidden by this."""
    folders = {path.parent for path in host.libraries(_PLUGIN)}
    whole = next((path.parent for path in host.libraries(_CORE) if path.parent in folders), None)
    if whole is None:
        return f"install the plugin of the same version as XRT, into the same place: {install_hint(host)}"
    if core.parent in host.library_path():
        return f"the XRT in {whole} has one: take {core.parent} out of this shell's LD_LIBRARY_PATH and XILINX_XRT"
    return (
        f"the XRT in {whole} has one, and the loader finds the other first: `export LD_LIBRARY_PATH={whole}` in this"
        f" shell, or remove the one in {core.parent}"
    )


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
