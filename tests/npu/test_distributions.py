"""What the doctor says on the distributions' own packages, as their files lie there."""

from __future__ import annotations

import sysconfig
from typing import TYPE_CHECKING

import pytest

from tests.npu.machine import SUFFIX
from unicorn_async.npu.doctor import examine, first_problem

if TYPE_CHECKING:
    from tests.npu.machine import Machine
    from unicorn_async.npu.doctor import Finding

UBUNTU_24_04 = ("ubuntu", "24.04", "noble", "6.14.0-37-generic")
UBUNTU_25_10 = ("ubuntu", "25.10", "questing", "6.17.0-6-generic")
UBUNTU_26_04 = ("ubuntu", "26.04", "resolute", "7.0.0-14-generic")
DEBIAN_13 = ("debian", "13", "trixie", "6.12.48+deb13-amd64")
DIST_PACKAGES = "usr/lib/python3/dist-packages"


def distribution(machine: Machine, facts: tuple[str, str, str, str]) -> None:
    """Make the machine one of this distribution, with nothing of XRT."""
    name, version, codename, kernel = facts
    text = f'PRETTY_NAME="X"\nID={name}\nVERSION_ID="{version}"\nVERSION_CODENAME={codename}'
    machine.write("etc/os-release", text)
    machine.write("proc/sys/kernel/osrelease", kernel)
    machine.remove("opt/xilinx")


def install(machine: Machine, suffix: str, *, dkms: bool = False) -> None:
    """Install the packages; DKMS's module taints the kernel."""
    for library in ("libxrt_core.so.2", "libxrt_driver_xdna.so.2"):
        machine.write(f"usr/lib/x86_64-linux-gnu/{library}", "")
    machine.write(f"{DIST_PACKAGES}/pyxrt{suffix}", "")
    if dkms:
        machine.write("sys/module/amdxdna/taint", "OE")


def problem(machine: Machine) -> Finding:
    found = first_problem(machine.host(on_path=False))
    assert found is not None and found.remedy
    return found


@pytest.mark.parametrize(
    ("facts", "wanted", "unwanted"),
    [
        (UBUNTU_24_04, "add-apt-repository ppa:lemonade-team/stable && sudo apt install libxrt-npu2", "backports"),
        (UBUNTU_25_10, "add-apt-repository ppa:lemonade-team/stable && sudo apt install libxrt-npu2", "backports"),
        (UBUNTU_26_04, "`sudo apt install libxrt-npu2 libxrt-utils libxrt-utils-npu python3-xrt`", "ppa:"),
        (DEBIAN_13, "apt install -t trixie-backports libxrt-npu2", "ppa:"),
        (("fedora", "43", "", "6.17.1-300.fc43"), "xrt_plugin-amdxdna", "add-apt-repository"),
    ],
    ids=lambda value: value[0] + value[1] if isinstance(value, tuple) else "",
)
def test_a_machine_without_xrt_is_told_its_own_packages(
    machine: Machine, facts: tuple[str, str, str, str], wanted: str, unwanted: str
) -> None:
    distribution(machine, facts)
    found = problem(machine)
    assert found.check == "XRT" and wanted in found.remedy and unwanted not in found.remedy


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (("ubuntu", "24.04", "noble", "6.8.0-51-generic"), "stable && sudo apt install amdxdna-dkms`"),
        (UBUNTU_24_04, "sudo modprobe amdxdna"),
        (UBUNTU_26_04, "sudo modprobe amdxdna"),
        (DEBIAN_13, "-t trixie-backports linux-image-amd64`"),
        (("fedora", "41", "", "6.12.0"), "DKMS"),
    ],
    ids=lambda value: value[0] + value[1] + value[3] if isinstance(value, tuple) else "",
)
def test_a_driver_that_is_not_loaded_is_got_as_the_distribution_has_it(
    machine: Machine, facts: tuple[str, str, str, str], wanted: str
) -> None:
    distribution(machine, facts)
    machine.remove("sys/module/amdxdna")
    found = problem(machine)
    assert found.check == "driver" and wanted in found.remedy


def test_what_is_made_of_ubuntu_has_its_packages(machine: Machine) -> None:
    distribution(machine, ("linuxmint", "22.2", "zara", "6.14.0-37-generic"))
    assert "add-apt-repository" not in problem(machine).remedy
    machine.write("etc/os-release", "ID=linuxmint\nVERSION_ID=22.2\nUBUNTU_CODENAME=noble")
    assert "add-apt-repository ppa:lemonade-team/stable" in problem(machine).remedy


PPA = "https://ppa.launchpadcontent.net/lemonade-team/stable/ubuntu"


@pytest.mark.parametrize(
    ("name", "text", "is_added"),
    [
        ("lemonade.sources", f"Types: deb\nURIs: {PPA}\nSuites: noble\nComponents: main", False),
        ("lemonade.list", f"deb [signed-by=/etc/apt/keyrings/x.gpg] {PPA} noble main", False),
        ("lemonade.sources", f"Enabled: no\nTypes: deb\nURIs: {PPA}\nSuites: noble", True),
        ("lemonade.sources", f"Types: deb-src\nURIs: {PPA}\nSuites: noble", True),
        ("lemonade.sources", f"Types: deb\nURIs: {PPA}\nSuites: jammy", True),
        ("lemonade.sources.save", f"Types: deb\nURIs: {PPA}\nSuites: noble", True),
        ("lemonade.list.distUpgrade", f"deb {PPA} noble main", True),
        ("lemonade.list", f"# deb {PPA} noble main", True),
        ("lemonade.list", f"deb-src {PPA} noble main", True),
        ("ubuntu.sources", "Types: deb\nURIs: http://archive.ubuntu.com/ubuntu\nSuites: noble", True),
    ],
)
def test_a_source_that_apt_takes_is_not_added_again(machine: Machine, name: str, text: str, is_added: bool) -> None:
    distribution(machine, UBUNTU_24_04)
    machine.write(f"etc/apt/sources.list.d/{name}", text)
    remedy = problem(machine).remedy
    assert ("add-apt-repository" in remedy) == is_added and "python3-xrt amdxdna-dkms" in remedy


@pytest.mark.parametrize(
    "facts", [("ubuntu", "22.04", "jammy", "6.8.0-51-generic"), ("ubuntu", "25.04", "plucky", "6.14.0-37-generic")]
)
def test_an_ubuntu_for_which_nobody_has_packages_is_not_sent_there(
    machine: Machine, facts: tuple[str, str, str, str]
) -> None:
    distribution(machine, facts)
    remedy = problem(machine).remedy
    assert "add-apt-repository" not in remedy and "24.04 and 25.10 with ppa:lemonade-team/stable" in remedy
    machine.remove("sys/module/amdxdna")
    assert "add-apt-repository" not in problem(machine).remedy


def test_a_kernel_whose_own_driver_is_new_enough_gets_no_other(machine: Machine) -> None:
    distribution(machine, (*UBUNTU_24_04[:3], "7.0.0-20-generic"))
    remedy = problem(machine).remedy
    assert "sudo apt install libxrt-npu2" in remedy and "dkms" not in remedy and "reboot" not in remedy


def test_a_module_of_dkms_that_does_not_load_is_told_apart_from_the_kernels_own(machine: Machine) -> None:
    distribution(machine, UBUNTU_25_10)
    machine.remove("sys/module/amdxdna")
    machine.write(f"lib/modules/{UBUNTU_25_10[3]}/kernel/drivers/accel/amdxdna/amdxdna.ko.zst", "")
    assert problem(machine).remedy.startswith("it is part of Linux")
    machine.write("lib/modules/6.17.0-5-generic/updates/dkms/amdxdna.ko.zst", "")
    assert problem(machine).remedy.startswith("it is part of Linux")
    machine.write(f"lib/modules/{UBUNTU_25_10[3]}/updates/dkms/amdxdna.ko.zst", "")
    remedy = problem(machine).remedy
    assert f"{UBUNTU_25_10[3]}/updates/dkms/amdxdna.ko.zst" in remedy
    assert all(words in remedy for words in ("dkms status", "mokutil --sb-state", "sudo apt remove amdxdna-dkms"))


@pytest.mark.parametrize("facts", [UBUNTU_24_04, UBUNTU_25_10, UBUNTU_26_04, DEBIAN_13], ids=lambda f: f[0] + f[1])
def test_a_pyxrt_of_the_system_is_found_and_linked_into_an_environment_of_its_version(
    machine: Machine, facts: tuple[str, str, str, str]
) -> None:
    distribution(machine, facts)
    install(machine, SUFFIX)
    found = problem(machine)
    assert found.check == "pyxrt" and f"{DIST_PACKAGES}/pyxrt{SUFFIX} is not on Python's path" in found.summary
    module = machine.root / DIST_PACKAGES / f"pyxrt{SUFFIX}"
    assert f"`ln -s {module} {sysconfig.get_path('platlib')}/`" in found.remedy and "setup.sh" not in found.remedy


def test_a_pyxrt_of_the_system_for_another_python_asks_for_an_environment_of_that_one(machine: Machine) -> None:
    distribution(machine, UBUNTU_26_04)
    install(machine, ".cpython-314-x86_64-linux-gnu.so")
    found = problem(machine)
    assert found.check == "pyxrt" and "cpython-314" in found.summary
    assert "/usr/bin/python3 -m venv" in found.remedy and DIST_PACKAGES in found.remedy


def test_a_plugin_that_is_missing_is_named_by_its_packages(machine: Machine) -> None:
    distribution(machine, UBUNTU_25_10)
    install(machine, SUFFIX)
    machine.remove("usr/lib/x86_64-linux-gnu/libxrt_driver_xdna.so.2")
    found = problem(machine)
    assert found.check == "XRT's NPU plugin" and "libxrt-npu2" in found.remedy


@pytest.mark.parametrize(
    ("facts", "dkms", "noted"),
    [
        (UBUNTU_24_04, False, True),
        (UBUNTU_25_10, False, True),
        (UBUNTU_25_10, True, False),
        (UBUNTU_26_04, False, False),
    ],
)
def test_a_driver_that_xrt_may_be_too_new_for_is_a_note(
    machine: Machine, facts: tuple[str, str, str, str], dkms: bool, noted: bool
) -> None:
    distribution(machine, facts)
    install(machine, SUFFIX, dkms=dkms)
    driver = next(finding for finding in examine(machine.host()) if finding.check == "driver")
    assert driver.ok and bool(driver.remedy) == noted
    assert ("not the kernel's own" in driver.summary) == dkms
    if noted:
        assert "amdxdna-dkms" in driver.remedy and "Incompatible firmware protocol" in driver.remedy


@pytest.mark.parametrize(
    ("facts", "dkms", "old"),
    [
        (UBUNTU_24_04, False, True),
        (UBUNTU_25_10, False, True),
        (UBUNTU_25_10, True, False),
        (UBUNTU_26_04, False, False),
    ],
)
def test_a_driver_that_left_no_device_file_is_told_with_firmware_and_plugin(
    machine: Machine, facts: tuple[str, str, str, str], dkms: bool, old: bool
) -> None:
    distribution(machine, facts)
    install(machine, SUFFIX, dkms=dkms)
    machine.remove("sys/class/accel/accel0")
    found = problem(machine)
    assert found.check == "device file" and "IOMMU" not in found.remedy and "dmesg" in found.remedy
    assert all(word in found.remedy for word in ("driver", "firmware", "plugin"))
    assert ("`Incompatible firmware protocol`" in found.remedy) == old
    machine.remove("sys/class/iommu/ivhd0")
    assert "no IOMMU runs" in problem(machine).remedy


def test_firmware_is_of_the_kernels_age_and_of_the_distributions_package(machine: Machine) -> None:
    machine.remove("lib/firmware/amdnpu/1502_00")
    machine.remove("sys/class/accel/accel0")
    distribution(machine, UBUNTU_25_10)
    assert "not a newer one" in problem(machine).remedy and "protocol 7" in problem(machine).remedy
    machine.write("proc/sys/kernel/osrelease", UBUNTU_26_04[3])
    assert "install a current linux-firmware" in problem(machine).remedy
    machine.write("etc/os-release", "ID=debian\nVERSION_CODENAME=trixie")
    assert "firmware-amd-graphics (of the archive area non-free-firmware)" in problem(machine).remedy


def test_debian_is_told_its_backports_with_the_source_that_they_need(machine: Machine) -> None:
    distribution(machine, DEBIAN_13)
    added = "echo 'deb http://deb.debian.org/debian trixie-backports main contrib non-free-firmware' | sudo tee"
    source = "etc/apt/sources.list.d/x.sources"
    assert added in problem(machine).remedy
    machine.write(source, "Types: deb\nSuites: trixie\n\nEnabled: no\nSuites: trixie-backports")
    machine.write("etc/apt/sources.list", "# deb http://deb.debian.org/debian trixie-backports main")
    assert added in problem(machine).remedy
    machine.write(source, "Types: deb\nSuites: trixie trixie-backports\nComponents: main")
    assert "echo" not in problem(machine).remedy and "-t trixie-backports libxrt-npu2" in problem(machine).remedy
    machine.remove(source)
    machine.write("etc/apt/sources.list", "deb http://deb.debian.org/debian trixie-backports main")
    assert "echo" not in problem(machine).remedy
    machine.write("etc/os-release", "ID=debian\nVERSION_ID=12\nVERSION_CODENAME=bookworm")
    assert "Debian 13 in its backports" in problem(machine).remedy
    machine.write("etc/os-release", "ID=debian\nVERSION_CODENAME=forky")
    assert "`sudo apt install libxrt-npu2" in problem(machine).remedy and "backports" not in problem(machine).remedy


@pytest.mark.parametrize(("version", "noted"), [("1.5.2.380", True), ("1.5.5.390", True), ("1.5.5.391", False)])
def test_firmware_with_which_others_runs_were_aborted_is_a_note(machine: Machine, version: str, noted: bool) -> None:
    machine.write("sys/class/accel/accel0/device/fw_version", version)
    firmware = next(finding for finding in examine(machine.host()) if finding.check == "firmware")
    assert firmware.ok and firmware.summary == version and bool(firmware.remedy) == noted
    if noted:
        wanted = "older than 1.5.5.391", "ABORT", "ret -22", "linux-firmware"
        assert all(words in firmware.remedy for words in wanted)


def test_firmware_that_is_all_that_an_old_kernels_distribution_has_comes_newer_with_a_driver(machine: Machine) -> None:
    distribution(machine, UBUNTU_25_10)
    machine.write("sys/class/accel/accel0/device/fw_version", "1.5.2.380")
    firmware = next(finding for finding in examine(machine.host()) if finding.check == "firmware")
    assert "amdxdna-dkms" in firmware.remedy and "not a newer one" not in firmware.remedy


def test_a_distribution_that_says_nothing_sensible_is_told_all_ways(machine: Machine) -> None:
    distribution(machine, ("ubuntu", "strange", "", "unknown"))
    assert "ppa:lemonade-team/stable" in problem(machine).remedy
    machine.remove("etc/os-release")
    assert "26.04" in problem(machine).remedy


def test_a_low_limit_is_raised_where_terminals_get_it(machine: Machine) -> None:
    machine.limit_memlock("8388608")
    remedy = problem(machine).remedy
    assert "prlimit" in remedy and "user@.service.d" in remedy and "LimitMEMLOCK" in remedy
    assert "sudo mkdir -p" in remedy and "sudo systemctl daemon-reload" in remedy
