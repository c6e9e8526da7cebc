"""Where a distribution has XRT for the NPU, and how the Python of a virtual environment gets its module."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.npu.host import NpuHost

_XRT = "libxrt-npu2 libxrt-utils libxrt-utils-npu python3-xrt"
_ARCHIVE = "lemonade-team/stable"
_PPA = f"ppa:{_ARCHIVE}"
_PPA_SUITES: dict[tuple[int, ...], str] = {
    (24, 4): "noble",
    (25, 10): "questing",
}  # releases of Ubuntu that it has packages for
_IN_ARCHIVE = (26, 4)  # Ubuntu's own, from this release on
_UBUNTU_RELEASES = {"noble": (24, 4), "questing": (25, 10), "resolute": (26, 4)}  # that distributions are made of
_ELSEWHERE = (
    "XRT with its NPU plugin (xrt_plugin-amdxdna), built from AMD's xdna-driver; Ubuntu 26.04 has packages"
    f" ({_XRT}), 24.04 and 25.10 with {_PPA}, Debian 13 in its backports"
)
_FIRST_DEBIAN = (13,)  # whose backports have what an NPU needs
_WITH_BACKPORTS = ("trixie",)
_WITH_DRIVER = (6, 14)  # Linux itself, from this release on
_OLD_DRIVERS = (6, 14), (6, 19)  # of Linux itself, which XRT's newer plugins ask for what they do not have
_NEWER_DRIVER = (
    "take Linux 7.0 or newer, or load the driver that comes with the plugin (amdxdna-dkms, or amdxdna.ko of AMD's"
    " xdna-driver), with the firmware that it brings"
)


def install_hint(host: NpuHost) -> str:
    """Return how this machine gets XRT, its NPU plugin and pyxrt."""
    ubuntu, debian = _ubuntu(host), _debian(host)
    if ubuntu is not None and ubuntu >= _IN_ARCHIVE:
        return f"`sudo apt install {_XRT}`"
    if ubuntu in _PPA_SUITES:
        install = f"{_added_source(host, ubuntu)}sudo apt install {_XRT}"
        if _kernel(host) > _OLD_DRIVERS[1]:
            return f"`{install}`, from {_PPA}"
        return f"`{install} amdxdna-dkms`, from {_PPA}, then reboot"
    if debian:
        return f"{_of_backports(host, debian, _XRT)}; Debian's own archive has another python3-xrt, a ray tracer's"
    return _ELSEWHERE


def load_hint(host: NpuHost) -> str:
    """Return how this machine gets a driver, where none is loaded."""
    ubuntu, debian = _ubuntu(host), _debian(host)
    if (built := host.built_driver()) is not None:
        return (
            f"{built}, which DKMS has built, goes before the kernel's own: `sudo modprobe amdxdna`, and where that"
            " fails, `dmesg | grep amdxdna`, `dkms status`, and `mokutil --sb-state` (Secure Boot takes signed modules"
            " alone) say why; Linux 6.14 and newer have one of their own, to get back by `sudo apt remove amdxdna-dkms"
            " && sudo depmod -a`, then reboot"
        )
    if _kernel(host) >= _WITH_DRIVER:
        return (
            "it is part of Linux 6.14 and newer: `sudo modprobe amdxdna`, and `dmesg | grep amdxdna` if it stays away"
        )
    if ubuntu in _PPA_SUITES:
        install = f"`{_added_source(host, ubuntu)}sudo apt install amdxdna-dkms`, from {_PPA}"
        return f"{install}, or a kernel of 6.14 or newer; then reboot"
    if debian:
        return (
            f"it is part of Linux 6.14 and newer: {_of_backports(host, debian, 'linux-image-amd64')}, then reboot; or"
            " AMD's DKMS package"
        )
    return "it is part of Linux 6.14 and newer (`modprobe amdxdna`); for older kernels there is AMD's DKMS package"


def firmware_hint(host: NpuHost) -> str:
    """Return how this machine gets firmware, of an age that its driver takes."""
    package = (
        "firmware-amd-graphics (of the archive area non-free-firmware)"
        if host.os_release().get("ID") == "debian"
        else "linux-firmware"
    )
    if _has_old_driver(host):
        return (
            f"install the {package} that the distribution has for this kernel (files in /lib/firmware/amdnpu), not a"
            " newer one, then reboot: Linux's own driver of 6.14 to 6.19 refuses firmware of protocol 7"
            " (`Incompatible firmware protocol`)"
        )
    return f"install a current {package} (files in /lib/firmware/amdnpu), then reboot"


def run_hint(host: NpuHost) -> str:
    """Return what to do where runs end with ABORT, as they did with old firmware."""
    return _NEWER_DRIVER if _has_old_driver(host) else firmware_hint(host)


def driver_hint(host: NpuHost) -> str | None:
    """Return what to do where the driver is one of Linux itself that XRT may be too new for; None elsewhere."""
    if not _has_old_driver(host):
        return None
    return (
        "where XRT says EOPNOTSUPP or EINVAL, or the kernel's log `Incompatible firmware protocol`, then driver,"
        f" firmware and XRT's plugin are of different ages: {_NEWER_DRIVER}"
    )


def version_hint(host: NpuHost) -> str:
    """Return what to do where XRT and the driver don't agree."""
    return driver_hint(host) or (
        "driver, firmware and XRT's plugin have to be of about the same age, and come from one place: what is known of"
        " them is above; `dmesg | grep -E 'amdxdna|xdna_mailbox'` may say what the driver did not take"
    )


def refusal_hint(host: NpuHost) -> str:
    """Return what to do where a loaded driver has left the NPU without a device file."""
    why = "the driver refused the NPU: `dmesg | grep amdxdna` says why"
    if not host.has_iommu():
        return f"{why}; no IOMMU runs, which it needs; {version_hint(host)}"
    return f"{why}; {version_hint(host)}"


def module_hint(host: NpuHost, module: Path, *, fits: bool) -> str:
    """Return how this Python gets a pyxrt that is on its disk but not on its path, or is for another version."""
    if module.parent not in host.system_python_folders():
        if fits:
            return f"source {module.parents[1]}/setup.sh in this shell"
        return "run unicorn with the Python that XRT was built for, or build XRT's Python module for this one"
    if fits:
        return (
            "link this one file into the environment:"
            f" `ln -s {shlex.quote(str(module))} {shlex.quote(str(host.own_modules()))}/`"
        )
    return (
        "it is for the system's Python alone: make unicorn's environment with that one (`/usr/bin/python3 -m venv`),"
        f" then link {module} into its site-packages"
    )


def _ubuntu(host: NpuHost) -> tuple[int, ...] | None:
    """Return the release of Ubuntu that this is, or is made of; None elsewhere."""
    release = host.os_release()
    if release.get("ID") == "ubuntu":
        return _numbers(release.get("VERSION_ID", ""))
    return _UBUNTU_RELEASES.get(release.get("UBUNTU_CODENAME", ""))


def _debian(host: NpuHost) -> str:
    """Return the codename of the Debian that this is, 13 or later; empty elsewhere."""
    release = host.os_release()
    is_old = (0,) < _numbers(release.get("VERSION_ID", "")) < _FIRST_DEBIAN
    return release.get("VERSION_CODENAME", "trixie") if release.get("ID") == "debian" and not is_old else ""


def _has_old_driver(host: NpuHost) -> bool:
    oldest, newest = _OLD_DRIVERS
    return host.has_in_tree_driver() and oldest <= _kernel(host) <= newest


def _kernel(host: NpuHost) -> tuple[int, ...]:
    return _numbers(host.kernel_release())[:2]


def _of_backports(host: NpuHost, debian: str, packages: str) -> str:
    """Return the command, with the source where apt has none; testing and unstable have no backports."""
    if debian not in _WITH_BACKPORTS:
        return f"`sudo apt install {packages}`"
    install, suite = f"sudo apt install -t {debian}-backports {packages}", f"{debian}-backports"
    if host.has_package_source(suite):
        return f"`{install}`, from {suite}"
    line = f"deb http://deb.debian.org/debian {suite} main contrib non-free-firmware"
    add = f"echo '{line}' | sudo tee /etc/apt/sources.list.d/{suite}.list && sudo apt update"
    return f"`{add} && {install}`, from {suite}"


def _added_source(host: NpuHost, ubuntu: tuple[int, ...]) -> str:
    has_source = host.has_package_source(_PPA_SUITES[ubuntu], _ARCHIVE)
    return "" if has_source else f"sudo add-apt-repository {_PPA} && "


def _numbers(text: str) -> tuple[int, ...]:
    found = re.match(r"\d{1,6}(\.\d{1,6})*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
