from __future__ import annotations

import errno
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.npu.machine import ADDRESS, SUFFIX, Machine
from unicorn_async.errors import NpuUnavailableError
from unicorn_async.npu.device import Device
from unicorn_async.npu.doctor import examine, first_problem, npu_chip, opening_by_xrt
from unicorn_async.npu.geometry import NPU1, NPU2
from unicorn_async.npu.host import NpuHost, library_path, open_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.npu.fake_xrt import Npu
    from unicorn_async.npu.geometry import Chip


def problem(machine: Machine, *, on_path: bool = True) -> tuple[str, str, str]:
    """The first problem: its check, what it says and what it advises."""
    found = first_problem(machine.host(on_path=on_path))
    assert found is not None and found.remedy
    return found.check, found.summary, found.remedy


@pytest.mark.parametrize("chip", [NPU1, NPU2])
def test_a_sound_machine_has_no_problem_and_its_chip_is_known(tmp_path: Path, chip: Chip) -> None:
    machine = Machine(tmp_path, chip)
    findings = examine(machine.host())
    assert [finding for finding in findings if not finding.ok] == []
    checks = ["NPU", "driver", "firmware", "device file", "memlock", "access", "XRT", "XRT's NPU plugin", "pyxrt"]
    assert [finding.check for finding in findings] == checks
    assert ADDRESS in findings[0].summary and chip.name in findings[0].summary
    assert npu_chip(machine.host()) is chip


def test_a_machine_without_an_npu_is_told_which_are_known(machine: Machine) -> None:
    machine.remove(f"sys/bus/pci/devices/{ADDRESS}")
    check, summary, remedy = problem(machine)
    assert check == "NPU" and "0x14e8" in summary and "1022:1502" in remedy and "1022:17f0" in remedy
    with pytest.raises(NpuUnavailableError):
        npu_chip(machine.host())


def test_another_vendors_device_of_the_same_number_is_no_npu(machine: Machine) -> None:
    machine.write(f"sys/bus/pci/devices/{ADDRESS}/vendor", "0x8086")
    assert problem(machine)[0] == "NPU"


def test_a_machine_without_sys_has_no_npu(tmp_path: Path) -> None:
    found = first_problem(NpuHost(tmp_path / "nothing"))
    assert found is not None and found.check == "NPU"


def test_a_driver_that_is_not_loaded_is_named_with_the_kernel(machine: Machine) -> None:
    machine.remove("sys/module/amdxdna")
    machine.write("proc/sys/kernel/osrelease", "6.8.0-51-generic")
    check, summary, remedy = problem(machine)
    assert check == "driver" and "6.8.0-51-generic" in summary and "6.14" in remedy and "DKMS" in remedy


def test_a_loaded_driver_without_a_device_file_points_to_the_kernels_log(machine: Machine) -> None:
    machine.remove("dev/accel/accel0")
    check, _, remedy = problem(machine)
    assert check == "device file" and "dmesg" in remedy


def test_another_accelerators_device_file_is_not_the_npus(machine: Machine) -> None:
    machine.write("sys/class/accel/accel0/device/vendor", "0x8086")
    assert problem(machine)[0] == "device file"


@pytest.mark.parametrize(
    ("number", "wanted"), [(errno.EACCES, "usermod -aG render"), (errno.EPERM, "--device /dev/accel/accel0")]
)
def test_a_device_file_that_may_not_be_opened_asks_for_what_allows_it(
    machine: Machine, number: int, wanted: str
) -> None:
    machine.deny(number)
    check, summary, remedy = problem(machine)
    assert check == "access" and "/dev/accel/accel0" in summary and wanted in remedy


@pytest.mark.parametrize("number", [95, 19, 22, 28])
def test_an_open_that_fails_without_an_iommu_asks_for_it(machine: Machine, number: int) -> None:
    machine.deny(number)
    machine.remove("sys/class/iommu/ivhd0")
    check, summary, remedy = problem(machine)
    assert check == "access" and f"({number})" in summary
    assert "does not run" in remedy and "amd_iommu=off" in remedy and "(it has nothing of an IOMMU)" in remedy


@pytest.mark.parametrize("kernel", ["6.14.0-15-generic", "6.18.7", "7.0.0-14-generic"])
@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.ENOSPC])
def test_an_open_that_fails_beside_an_iommu_asks_for_what_binds_shared_addresses(
    machine: Machine, number: int, kernel: str
) -> None:
    machine.deny(number)
    machine.write("proc/sys/kernel/osrelease", kernel)
    machine.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz quiet amd_iommu=on ttm.pages_limit=1")
    remedy = problem(machine)[2]
    assert "though an IOMMU runs" in remedy and "iommu=pt" in remedy and "(this one has amd_iommu=on)" in remedy


def test_other_errors_of_the_device_file_are_told_with_their_number(machine: Machine) -> None:
    machine.deny(errno.EBUSY)
    assert f"({errno.EBUSY})" in problem(machine)[1]
    machine.deny(errno.ENOMEM)
    assert "memlock" in problem(machine)[2]


def test_missing_firmware_is_seen_without_a_version(machine: Machine) -> None:
    machine.remove("sys/class/accel/accel0/device/fw_version")
    machine.remove("lib/firmware/amdnpu/1502_00")
    check, summary, remedy = problem(machine)
    assert check == "firmware" and "amdnpu/1502_00" in summary and "linux-firmware" in remedy


def test_missing_firmware_is_named_before_the_device_file_that_it_costs(machine: Machine) -> None:
    machine.remove("sys/class/accel/accel0")
    machine.remove("lib/firmware/amdnpu/1502_00")
    assert problem(machine)[0] == "firmware"


@pytest.mark.parametrize(
    ("revision", "folder", "is_found"),
    [
        ("0x10", "17f0_10", True),
        ("0x11", "17f0_11", True),
        ("0x11", "17f0_10", False),
        ("0x20", "17f0_20", True),
        ("0x20", "17f0_10", True),
        ("0x10", "17f0_00", False),
        ("0x30", "17f0_11", True),
    ],
)
def test_firmware_is_looked_for_where_the_driver_takes_it_for_the_revision(
    tmp_path: Path, revision: str, folder: str, is_found: bool
) -> None:
    machine = Machine(tmp_path, NPU2)
    machine.remove("lib/firmware/amdnpu")
    machine.remove("sys/class/accel/accel0/device/fw_version")
    machine.write(f"sys/bus/pci/devices/{ADDRESS}/revision", revision)
    machine.write(f"lib/firmware/amdnpu/{folder}/npu.sbin.zst", "")
    found = first_problem(machine.host())
    assert (found is None) == is_found
    assert found is None or f"nothing is in /lib/firmware/amdnpu/17f0_{revision[2:]}" in found.summary


def test_a_version_that_is_empty_is_none(machine: Machine) -> None:
    machine.write("sys/class/accel/accel0/device/fw_version", "")
    assert first_problem(machine.host()) is None
    machine.remove("lib/firmware/amdnpu/1502_00")
    assert "the driver tells no version" in problem(machine)[1]


@pytest.mark.parametrize("version", ["0.0.0.0", "1.4.9.999", "1.5.2.379", "strange"])
def test_old_firmware_is_told_with_the_oldest_that_will_do(machine: Machine, version: str) -> None:
    machine.write("sys/class/accel/accel0/device/fw_version", version)
    check, summary, _ = problem(machine)
    assert check == "firmware" and version in summary and "1.5.2.380" in summary


def test_a_low_memlock_limit_is_told_with_what_is_needed(machine: Machine) -> None:
    machine.limit_memlock("8388608")
    check, summary, remedy = problem(machine)
    assert check == "memlock" and "8,388,608" in summary and "67,108,864" in summary and "limits.d" in remedy
    machine.limit_memlock("67108864")
    assert first_problem(machine.host()) is None


def test_a_machine_without_xrt_is_told_so(machine: Machine) -> None:
    machine.remove("opt/xilinx/xrt/lib")
    check, summary, _ = problem(machine)
    assert check == "XRT" and "libxrt_core.so.2" in summary


def move_xrt(machine: Machine, folder: str) -> None:
    (machine.root / folder).parent.mkdir(parents=True, exist_ok=True)
    (machine.root / "opt/xilinx/xrt/lib").rename(machine.root / folder)


@pytest.mark.parametrize("folder", ["opt/xilinx/xrt/lib64", "usr/lib64", "usr/local/lib"])
def test_xrt_is_found_in_the_usual_places(machine: Machine, folder: str) -> None:
    move_xrt(machine, folder)
    assert first_problem(machine.host()) is None


def test_xrt_is_found_where_the_environment_says(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    move_xrt(machine, "home/u/xrt/lib")
    assert problem(machine)[0] == "XRT"
    machine.library_path = (machine.root / ("a" * 300), machine.root / "home/u/xrt/lib")
    assert first_problem(machine.host()) is None
    monkeypatch.setenv("LD_LIBRARY_PATH", "/a::/b")
    monkeypatch.delenv("XILINX_XRT", raising=False)
    assert library_path() == (Path("/a"), Path("/b"))
    monkeypatch.setenv("XILINX_XRT", "/xrt")
    assert library_path()[2:] == (Path("/xrt/lib"), Path("/xrt/lib64"))
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert library_path() == (Path("/xrt/lib"), Path("/xrt/lib64"))


def test_xrt_is_found_where_the_loaders_cache_has_it(machine: Machine) -> None:
    move_xrt(machine, "srv/xrt/lib")
    entries = ("libxrt_core.so", "libxrt_core.so.2", "libxrt_driver_xdna.so.2")
    paths = b"".join(f"{name}\0/srv/gone/{name}\0/srv/xrt/lib/{name}\0".encode() for name in entries)
    (machine.root / "etc").mkdir()
    (machine.root / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1\xff\xfe\0" + paths)
    assert first_problem(machine.host()) is None


def remove_pyxrt(machine: Machine) -> None:
    machine.remove(f"opt/xilinx/xrt/python/pyxrt{SUFFIX}")


@pytest.mark.parametrize(
    ("check", "harm"),
    [
        ("firmware", lambda m: m.write("sys/class/accel/accel0/device/fw_version", "1.5.2.379")),
        ("memlock", lambda m: m.limit_memlock("8388608")),
        ("XRT", lambda m: move_xrt(m, "home/u/xrt")),
        ("XRT's NPU plugin", lambda m: m.remove("opt/xilinx/xrt/lib/libxrt_driver_xdna.so.2")),
        ("pyxrt", remove_pyxrt),
    ],
)
def test_what_is_only_guessed_is_a_note_where_xrt_opens_the_npu(
    machine: Machine, npu: Npu, check: str, harm: Callable[[Machine], object]
) -> None:
    harm(machine)
    (note,) = (finding for finding in examine(machine.host()) if finding.remedy)
    assert (note.check, note.ok) == (check, True) and note.summary.endswith("; but XRT opens the NPU")
    Device.open(machine.host()).close()
    npu.devices = ()
    assert problem(machine)[0] == check
    with pytest.raises(NpuUnavailableError, match=re.escape(note.remedy)):
        Device.open(machine.host())


@pytest.mark.usefixtures("npu")
def test_what_was_seen_to_fail_is_no_note_whatever_xrt_says(machine: Machine) -> None:
    machine.limit_memlock("8388608")
    machine.deny()
    assert [finding.check for finding in examine(machine.host()) if not finding.ok] == ["memlock", "access"]


def test_a_missing_plugin_is_named(machine: Machine) -> None:
    machine.remove("opt/xilinx/xrt/lib/libxrt_driver_xdna.so.2")
    check, summary, _ = problem(machine)
    assert check == "XRT's NPU plugin" and "not installed" in summary


def test_a_plugin_elsewhere_is_told_with_both_places(machine: Machine) -> None:
    machine.remove("opt/xilinx/xrt/lib/libxrt_driver_xdna.so.2")
    machine.write("usr/lib/libxrt_driver_xdna.so.2", "")
    check, summary, _ = problem(machine)
    assert check == "XRT's NPU plugin" and "usr/lib" in summary and "opt/xilinx/xrt/lib" in summary


def test_a_whole_xrt_that_another_one_hides_is_named(machine: Machine) -> None:
    machine.remove("opt/xilinx/xrt/lib/libxrt_driver_xdna.so.2")
    for library in ("libxrt_core.so.2", "libxrt_driver_xdna.so.2"):
        machine.write(f"usr/lib/x86_64-linux-gnu/{library}", "")
    whole, part = (machine.root / name for name in ("usr/lib/x86_64-linux-gnu", "opt/xilinx/xrt/lib"))
    remedy = problem(machine)[2]
    assert f"export LD_LIBRARY_PATH={whole}" in remedy and f"remove the one in {part}" in remedy
    machine.library_path = (part,)
    assert f"take {part} out of this shell's LD_LIBRARY_PATH and XILINX_XRT" in problem(machine)[2]
    machine.library_path = (whole,)
    assert first_problem(machine.host()) is None


def test_a_plugin_beside_xrt_counts_where_there_is_another_one(machine: Machine) -> None:
    machine.library_path = (machine.root / "srv",)
    machine.write("srv/libxrt_driver_xdna.so.2", "")
    assert first_problem(machine.host()) is None


@pytest.mark.parametrize(
    ("failure", "wanted", "unwanted"),
    [
        ("mmap(len=67108864) failed (err=-11): Resource temporarily unavailable", "prlimit", "same age"),
        ("mmap failed (err=-12): Cannot allocate memory", "LimitMEMLOCK=infinity", "same age"),
        ("open failed (err=-13): Permission denied", "usermod -aG render", "same age"),
        ("open failed: Operation not permitted", "--device /dev/accel/accel0", "same age"),
        ("libxrt_coreutil.so.2: cannot open shared object file", "libxrt_coreutil.so.2 is not installed", "same age"),
        ("libxrt_core.so.2: cannot open shared object file", "export LD_LIBRARY_PATH=", "same age"),
        ("No such device with index '0000:c4:00.1'", "plugin finds no NPU, or is not of the same version", "prlimit"),
        ("DRM_IOCTL_AMDXDNA_GET_INFO IOCTL failed (err=-95): Operation not supported", "same age", "prlimit"),
        ("DRM_IOCTL_AMDXDNA_CREATE_BO IOCTL failed (err=-22): Invalid argument", "same age", "prlimit"),
        ("something else", "dmesg", "same age"),
    ],
)
def test_an_xrt_that_does_not_open_the_npu_is_answered_by_its_words(
    machine: Machine, failure: str, wanted: str, unwanted: str
) -> None:
    host = replace(machine.host(), opening_failure=lambda _: failure)
    found = opening_by_xrt(host)
    assert not found.ok and failure in found.summary
    assert wanted in found.remedy and unwanted not in found.remedy


def test_a_pyxrt_for_another_python_is_told_with_both_versions(machine: Machine) -> None:
    machine.remove(f"opt/xilinx/xrt/python/pyxrt{SUFFIX}")
    machine.write("opt/xilinx/xrt/python/pyxrt.cpython-312-x86_64-linux-gnu.so", "")
    check, summary, _ = problem(machine)
    assert check == "pyxrt" and "cpython-312" in summary and "cpython-311" in summary


def test_a_missing_pyxrt_and_one_that_is_not_on_the_path_are_told_apart(machine: Machine) -> None:
    check, summary, remedy = problem(machine, on_path=False)
    assert check == "pyxrt" and "not on Python's path" in summary and "setup.sh" in remedy
    machine.remove(f"opt/xilinx/xrt/python/pyxrt{SUFFIX}")
    check, summary, _ = problem(machine)
    assert check == "pyxrt" and "not installed" in summary


def test_opening_a_file_tells_its_error(tmp_path: Path) -> None:
    assert open_error(tmp_path / "nothing") == errno.ENOENT
    (tmp_path / "file").touch()
    assert open_error(tmp_path / "file") == 0
