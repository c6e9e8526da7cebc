"""What the kernel and the file system tell about an NPU, without touching it."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.npu.xrt import opens_device

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARY_DIRS = (
    "opt/xilinx/xrt/lib",
    "opt/xilinx/xrt/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/lib",
)
_MAX_CACHE_BYTES = 64 << 20
_RUN_LIMITS = (("tdr_timeout_ms", 1e-3), ("timeout_in_sec", 1.0))  # newer drivers have the first
_USUAL_RUN_LIMIT_S = 2.0
_UNLIMITED = 1 << 62


def library_path() -> tuple[Path, ...]:
    """Return where this process's environment has libraries looked for, XRT's own variable included."""
    folders = [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    if xrt := os.environ.get("XILINX_XRT"):
        folders += [Path(xrt) / "lib", Path(xrt) / "lib64"]
    return tuple(folders)


def open_error(path: Path) -> int:
    """Return the errno of opening a device file for reading and writing, or 0."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as exc:
        return exc.errno or -1
    return 0


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A device of AMD on the PCI bus; `device` as in its file, such as 0x1502."""

    address: str
    device: str


@dataclass(frozen=True, slots=True)
class AccelNode:
    """A device file of the kernel's accel class, and the firmware's version if its driver tells."""

    path: Path
    device: str
    firmware: str | None


@dataclass(frozen=True, slots=True)
class NpuHost:
    """Looks at files below `root`; what is no file is a field too, so that tests can bring their own machine."""

    root: Path = Path("/")
    open_node: Callable[[Path], int] = open_error
    python_path: tuple[Path, ...] | None = None  # None = this interpreter's
    extension_suffix: str | None = None  # of this interpreter's compiled modules; None = ask it
    library_path: Callable[[], tuple[Path, ...]] = library_path
    opens_device: Callable[[str], bool] = opens_device

    def amd_devices(self) -> tuple[PciDevice, ...]:
        """Return AMD's devices on the PCI bus."""
        folders = sorted(self._glob("sys/bus/pci/devices/*"))
        return tuple(
            PciDevice(folder.name, _text(folder / "device") or "")
            for folder in folders
            if _text(folder / "vendor") == "0x1022"
        )

    def accel_nodes(self) -> tuple[AccelNode, ...]:
        """Return the device files of accelerators that AMD made."""
        return tuple(
            AccelNode(
                self.root / "dev/accel" / folder.name,
                _text(folder / "device/device") or "",
                _text(folder / "device/fw_version"),
            )
            for folder in sorted(self._glob("sys/class/accel/accel*"))
            if _text(folder / "device/vendor") == "0x1022" and (self.root / "dev/accel" / folder.name).exists()
        )

    def has_driver(self) -> bool:
        """Whether the kernel has loaded amdxdna."""
        return (self.root / "sys/module/amdxdna").is_dir()

    def has_in_tree_driver(self) -> bool:
        """Whether the loaded amdxdna is the kernel's own: others taint it with an O."""
        return self.has_driver() and "O" not in (_text(self.root / "sys/module/amdxdna/taint") or "")

    def run_limit_s(self) -> float | None:
        """Return after how long the driver ends a run, or None if it never does.

        Where it does not tell, or tells root alone, it is what amdxdna has without being told otherwise.
        """
        for name, unit in _RUN_LIMITS:
            text = _text(self.root / "sys/module/amdxdna/parameters" / name) or ""
            if text.isascii() and text.isdigit():
                return int(text[:9]) * unit or None
        return _USUAL_RUN_LIMIT_S

    def os_release(self) -> dict[str, str]:
        """Return what the distribution says of itself, by its names, such as ID and VERSION_ID."""
        lines = (_text(self.root / "etc/os-release") or "").splitlines()
        pairs = (line.partition("=") for line in lines if "=" in line)
        return {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}

    def has_package_source(self, name: str) -> bool:
        """Whether apt knows a source whose file is named after it."""
        return bool(self._glob(f"etc/apt/sources.list.d/*{name}*"))

    def kernel_release(self) -> str:
        """Return the kernel's release, such as 6.14.0-15-generic."""
        return _text(self.root / "proc/sys/kernel/osrelease") or "unknown"

    def has_iommu(self) -> bool:
        """Whether the kernel runs an IOMMU."""
        return bool(self._glob("sys/class/iommu/*"))

    def memlock_bytes(self) -> int | None:
        """Return how much memory this process may lock, in bytes; None where the kernel does not tell."""
        for line in (_text(self.root / "proc/self/limits") or "").splitlines():
            if line.startswith("Max locked memory"):
                soft = line.split()[3]
                return _UNLIMITED if soft == "unlimited" else int(soft) if soft.isdigit() else None
        return None

    def firmware_files(self, device: str) -> tuple[Path, ...]:
        """Return the firmware that is installed for a PCI device."""
        return tuple(self._glob(f"lib/firmware/amdnpu/{device.removeprefix('0x')}_*/npu*"))

    def library(self, name: str) -> Path | None:
        """Return where a shared library lies, or None: where the loader finds it, or in a usual place."""
        named = (folder / name for folder in self.library_path())
        usual = (self.root / folder / name for folder in _LIBRARY_DIRS)
        return next((path for path in (*named, *self._cached_libraries(name), *usual) if _is_there(path)), None)

    def _cached_libraries(self, name: str) -> list[Path]:
        """Return where the loader's cache has a library; it is binary, with paths that end in a zero byte."""
        try:
            with (self.root / "etc/ld.so.cache").open("rb") as file:
                content = file.read(_MAX_CACHE_BYTES)
        except OSError:
            return []
        found = re.findall(rb"(/[^\0]*/%s)\0" % re.escape(name.encode()), content)
        return [self.root / os.fsdecode(path).lstrip("/") for path in found]

    def pyxrt_files(self) -> tuple[Path, ...]:
        """Return every pyxrt that there is, whether this Python sees it or not."""
        return tuple(path for folder in self.python_folders() for path in sorted(folder.glob("pyxrt*.so")))

    def python_folders(self) -> tuple[Path, ...]:
        """Return where modules are looked for, with XRT's own folder and those of the system's Python."""
        others = (self.root / "opt/xilinx/xrt/python", *self.system_python_folders())
        return tuple(dict.fromkeys((*self.own_python_path(), *others)))

    def system_python_folders(self) -> tuple[Path, ...]:
        """Return where packages of Debian and Ubuntu put modules, which no virtual environment looks into."""
        return (self.root / "usr/lib/python3/dist-packages",)

    def own_python_path(self) -> tuple[Path, ...]:
        """Return where this Python looks for modules."""
        return tuple(Path(entry) for entry in sys.path if entry) if self.python_path is None else self.python_path

    def module_suffixes(self) -> tuple[str, ...]:
        """Return the endings of compiled modules that this Python takes."""
        suffix = self.extension_suffix or str(sysconfig.get_config_var("EXT_SUFFIX"))
        return (suffix, ".abi3.so", "pyxrt.so")

    def _glob(self, pattern: str) -> list[Path]:
        try:
            return sorted(self.root.glob(pattern))
        except OSError:
            return []


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")[:65536].strip()
    except OSError:
        return None
