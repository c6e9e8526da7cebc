"""A machine with an NPU, as files: what the kernel and XRT's installation would show."""

from __future__ import annotations

import errno
import sys
from typing import TYPE_CHECKING

from unicorn_async.npu.geometry import NPU1
from unicorn_async.npu.host import NpuHost
from unicorn_async.npu.xrt import opening_failure

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.npu.geometry import Chip

SUFFIX = ".cpython-311-x86_64-linux-gnu.so"
ADDRESS = "0000:c4:00.1"
LIMITS = "Limit              Soft Limit  Hard Limit  Units\nMax locked memory  {}          {}          bytes\n"


def double_fails(address: str) -> str | None:
    """Ask the double where there is one, and never the XRT of the machine that runs the tests."""
    return opening_failure(address) if "pyxrt" in sys.modules else "no double"


class Machine:
    """Files under `root`, all of them as they should be until a test changes them."""

    def __init__(self, root: Path, chip: Chip = NPU1) -> None:
        self.root = root
        self.chip = chip
        self.open_errno = 0
        self.library_path: tuple[Path, ...] = ()
        firmware = {"npu1": "1.5.5.391", "npu2": "1.1.2.64"}[chip.name]
        self.write(f"sys/bus/pci/devices/{ADDRESS}/vendor", "0x1022")
        self.write(f"sys/bus/pci/devices/{ADDRESS}/device", chip.pci_device)
        revision = {"npu1": "00", "npu2": "10"}[chip.name]
        self.write(f"sys/bus/pci/devices/{ADDRESS}/revision", f"0x{revision}")
        self.write("sys/bus/pci/devices/0000:00:00.0/vendor", "0x1022")
        self.write("sys/bus/pci/devices/0000:00:00.0/device", "0x14e8")
        self.write("sys/module/amdxdna/refcnt", "0")
        self.write("sys/class/accel/accel0/device/vendor", "0x1022")
        self.write("sys/class/accel/accel0/device/device", chip.pci_device)
        self.write("sys/class/accel/accel0/device/fw_version", firmware)
        self.write("sys/class/iommu/ivhd0/name", "")
        self.write("dev/accel/accel0", "")
        self.write(f"lib/firmware/amdnpu/{chip.pci_device[2:]}_{revision}/npu.sbin.{firmware}.zst", "")
        self.write("proc/sys/kernel/osrelease", "7.0.0-14-generic")
        self.limit_memlock("unlimited")
        for library in ("libxrt_core.so.2", "libxrt_driver_xdna.so.2"):
            self.write(f"opt/xilinx/xrt/lib/{library}", "")
        self.write(f"opt/xilinx/xrt/python/pyxrt{SUFFIX}", "")

    def host(self, *, on_path: bool = True) -> NpuHost:
        """The machine as the product sees it."""
        path = (self.root / "opt/xilinx/xrt/python",) if on_path else ()
        return NpuHost(self.root, lambda _: self.open_errno, path, SUFFIX, lambda: self.library_path, double_fails)

    def write(self, name: str, text: str) -> None:
        """Make a file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with what is in it."""
        path = self.root / name
        for child in path.iterdir() if path.is_dir() else ():
            self.remove(str(child.relative_to(self.root)))
        path.rmdir() if path.is_dir() else path.unlink()

    def limit_memlock(self, soft: str) -> None:
        """Set the limit of this process."""
        self.write("proc/self/limits", LIMITS.format(soft, "unlimited"))

    def deny(self, number: int = errno.EACCES) -> None:
        """Have the device file refuse to be opened."""
        self.open_errno = number
