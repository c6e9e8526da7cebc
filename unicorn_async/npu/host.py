"""What the kernel and the file system tell about an NPU, without touching it."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.npu.xrt import opening_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
_USUAL_RUN_LIMIT_S = 2.0  # of drivers that have one of them
_FIXED_RUN_LIMIT_S = 60.0  # of Linux's own driver, as long as that had neither
_UNLIMITED = 1 << 62
# By device and revision, as the driver's sources name them, of several ages for the last one.
_FIRMWARE_FOLDERS = {
    ("0x1502", "0x00"): ("1502_00",),
    ("0x17f0", "0x10"): ("17f0_10",),
    ("0x17f0", "0x11"): ("17f0_11",),
    ("0x17f0", "0x20"): ("17f0_20", "17f0_10"),
}
# In a stanza of apt's: it is switched off, or has no binary packages.
_NO_SOURCE = re.compile(r"enabled\s*:\s*(no|false|off|0)\s*|types\s*:\s*deb-src\s*", re.IGNORECASE)


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
    """A device of AMD on the PCI bus; `device` and `revision` as in their files, such as 0x1502 and 0x00."""

    address: str
    device: str
    revision: str


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
    opening_failure: Callable[[str], str | None] = opening_failure  # of XRT, by the address on the PCI bus

    def amd_devices(self) -> tuple[PciDevice, ...]:
        """Return AMD's devices on the PCI bus."""
        folders = sorted(self._glob("sys/bus/pci/devices/*"))
        return tuple(
            PciDevice(folder.name, _text(folder / "device") or "", _text(folder / "revision") or "")
            for folder in folders
            if _text(folder / "vendor") == "0x1022"
        )

    def accel_nodes(self) -> tuple[AccelNode, ...]:
        """Return the device files of accelerators that AMD made."""
        return tuple(
            AccelNode(
                self.root / "dev/accel" / folder.name,
                _text(folder / "device/device") or "",
                _text(folder / "device/fw_version") or None,
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

    def npu_software(self) -> str:
        """Return what an NPU's times are of besides its kernels: its firmware, and its driver by its age."""
        firmware = next((node.firmware for node in self.accel_nodes() if node.firmware), "unknown")
        own = "Linux's own driver" if self.has_in_tree_driver() else "another driver than Linux's own"
        version = _text(self.root / "sys/module/amdxdna/version") or "unknown"
        return f"firmware {firmware}, {own}, version {version}, Linux {'.'.join(self.kernel_release().split('.')[:2])}"

    def run_limit_s(self) -> float | None:
        """Return after how long the driver ends a run, or None if it never does.

        Where it tells root alone, it is what amdxdna has without being told otherwise.
        """
        files = [(self.root / "sys/module/amdxdna/parameters" / name, unit) for name, unit in _RUN_LIMITS]
        for path, unit in files:
            text = _text(path) or ""
            if text.isascii() and text.isdigit():
                return int(text[:9]) * unit or None
        return _USUAL_RUN_LIMIT_S if any(_is_there(path) for path, _ in files) else _FIXED_RUN_LIMIT_S

    def os_release(self) -> dict[str, str]:
        """Return what the distribution says of itself, by its names, such as ID and VERSION_ID."""
        lines = (_text(self.root / "etc/os-release") or "").splitlines()
        pairs = (line.partition("=") for line in lines if "=" in line)
        return {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}

    def has_package_source(self, suite: str, archive: str = "") -> bool:
        """Whether a source that apt takes has this suite, of an archive in whose address this is.

        One that is switched off has not, nor one that is left from an earlier release under another ending.
        """
        return any(_is_source(stanza, suite, archive) for stanza in self._package_sources())

    def _package_sources(self) -> Iterator[str]:
        folder = "etc/apt/sources.list.d"
        for path in (self.root / "etc/apt/sources.list", *self._glob(f"{folder}/*.list")):
            yield from (line for line in (_text(path) or "").splitlines() if line.startswith("deb "))
        for path in self._glob(f"{folder}/*.sources"):
            yield from re.split(r"\n\s*\n", _text(path) or "")

    def built_driver(self) -> Path | None:
        """Return the amdxdna that DKMS has built for this kernel, which goes before the kernel's own."""
        return next(iter(self._glob(f"lib/modules/{self.kernel_release()}/updates/**/amdxdna.ko*")), None)

    def kernel_release(self) -> str:
        """Return the kernel's release, such as 6.14.0-15-generic."""
        return _text(self.root / "proc/sys/kernel/osrelease") or "unknown"

    def command_line(self) -> tuple[str, ...]:
        """Return the words of the kernel's command line."""
        return tuple((_text(self.root / "proc/cmdline") or "").split())

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

    def firmware_folders(self, device: PciDevice) -> tuple[str, ...]:
        """Return the folders, below the firmware's, of which the driver takes one for this device."""
        return _FIRMWARE_FOLDERS.get((device.device, device.revision)) or tuple(
            dict.fromkeys(
                folder
                for (number, _), folders in _FIRMWARE_FOLDERS.items()
                for folder in folders
                if number == device.device
            )
        )

    def firmware_files(self, device: PciDevice) -> tuple[Path, ...]:
        """Return the firmware that is installed for a device."""
        folders = (f"lib/firmware/amdnpu/{name}/npu*" for name in self.firmware_folders(device))
        return tuple(path for folder in folders for path in self._glob(folder))

    def library(self, name: str) -> Path | None:
        """Return where a shared library lies, or None: where the loader finds it, or in a usual place."""
        return next(self.libraries(name), None)

    def libraries(self, name: str) -> Iterator[Path]:
        """Return every place in which a shared library lies, in the loader's order."""
        named = (folder / name for folder in self.library_path())
        usual = (self.root / folder / name for folder in _LIBRARY_DIRS)
        return (path for path in (*named, *self._cached_libraries(name), *usual) if _is_there(path))

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

    def own_modules(self) -> Path:
        """Return where this Python's environment has its compiled packages."""
        return Path(sysconfig.get_path("platlib"))

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


def _is_source(stanza: str, suite: str, archive: str) -> bool:
    """Whether a stanza of apt's, or a line of its older format, is for a suite of an archive."""
    lines = [line for line in stanza.splitlines() if not line.startswith("#")]
    if any(_NO_SOURCE.fullmatch(line) for line in lines):
        return False
    return archive in "\n".join(lines) and any(suite in line.split() for line in lines)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")[:65536].strip()
    except OSError:
        return None
