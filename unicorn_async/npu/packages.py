"""Where a distribution has XRT for the NPU, and how the Python of a virtual environment gets its module."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.npu.host import NpuHost

_XRT = "libxrt-npu2 libxrt-utils libxrt-utils-npu python3-xrt"
_PPA = "ppa:lemonade-team/stable"
_IN_ARCHIVE = (26, 4)  # Ubuntu's own, from this release on
_OLD_DRIVERS = (6, 14), (6, 19)  # of Linux itself, which XRT's newer plugins ask for what they do not have


def install_hint(host: NpuHost) -> str:
    """Return how this machine gets XRT, its NPU plugin and pyxrt."""
    release = host.os_release()
    name, version = release.get("ID", ""), _numbers(release.get("VERSION_ID", ""))
    if name == "ubuntu" and version >= _IN_ARCHIVE:
        return f"`sudo apt install {_XRT}`"
    if name == "ubuntu":
        add = "" if host.has_package_source("lemonade-team") else f"sudo add-apt-repository {_PPA} && "
        return f"`{add}sudo apt install {_XRT} amdxdna-dkms`, from {_PPA}"
    if name == "debian":
        codename = release.get("VERSION_CODENAME", "trixie")
        return f"`sudo apt install -t {codename}-backports {_XRT}`, from {codename}-backports"
    return (
        "XRT with its NPU plugin (xrt_plugin-amdxdna), built from AMD's xdna-driver; Ubuntu 26.04 has packages"
        f" ({_XRT}), 24.04 and 25.10 with {_PPA}, Debian 13 in its backports"
    )


def driver_hint(host: NpuHost) -> str | None:
    """Return what to do where the driver is one of Linux itself that XRT may be too new for; None elsewhere."""
    oldest, newest = _OLD_DRIVERS
    if not host.has_in_tree_driver() or not oldest <= _numbers(host.kernel_release())[:2] <= newest:
        return None
    return (
        "where XRT says EOPNOTSUPP or EINVAL, or the kernel's log `Incompatible firmware protocol`, then driver,"
        " firmware and XRT's plugin are of different ages: take Linux 7.0 or newer, or load the driver that comes with"
        " the plugin (amdxdna-dkms, or amdxdna.ko of AMD's xdna-driver), with the firmware that it brings"
    )


def module_hint(host: NpuHost, module: Path, *, fits: bool) -> str:
    """Return how this Python gets a pyxrt that is on its disk but not on its path, or is for another version."""
    if module.parent not in host.system_python_folders():
        if fits:
            return f"source {module.parents[1]}/setup.sh in this shell"
        return "run unicorn with the Python that XRT was built for, or build XRT's Python module for this one"
    if fits:
        return (
            "link this one file into the environment:"
            f""" `ln -s {module} "$(python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')"/`"""
        )
    return (
        "it is for the system's Python alone: make unicorn's environment with that one (`/usr/bin/python3 -m venv`),"
        f" then link {module} into its site-packages"
    )


def _numbers(text: str) -> tuple[int, ...]:
    found = re.match(r"\d{1,6}(\.\d{1,6})*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
