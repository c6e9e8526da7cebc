"""What the doctor says on the distributions' own packages, as their files lie there."""

from __future__ import annotations

import errno
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


def test_a_source_that_is_there_is_not_added_again(machine: Machine) -> None:
    distribution(machine, UBUNTU_24_04)
    machine.write("etc/apt/sources.list.d/lemonade-team-ubuntu-stable-noble.sources", "")
    remedy = problem(machine).remedy
    assert "add-apt-repository" not in remedy and "python3-xrt amdxdna-dkms" in remedy


@pytest.mark.parametrize("facts", [UBUNTU_24_04, UBUNTU_25_10, UBUNTU_26_04, DEBIAN_13], ids=lambda f: f[0] + f[1])
def test_a_pyxrt_of_the_system_is_found_and_linked_into_an_environment_of_its_version(
    machine: Machine, facts: tuple[str, str, str, str]
) -> None:
    distribution(machine, facts)
    install(machine, SUFFIX)
    found = problem(machine)
    assert found.check == "pyxrt" and f"{DIST_PACKAGES}/pyxrt{SUFFIX} is not on Python's path" in found.summary
    assert "ln -s" in found.remedy and "platlib" in found.remedy and "setup.sh" not in found.remedy


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


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_an_old_driver_that_refuses_is_blamed_and_the_iommu_is_not(machine: Machine, number: int) -> None:
    distribution(machine, UBUNTU_25_10)
    machine.deny(number)
    remedy = problem(machine).remedy
    assert all(word in remedy for word in ("driver", "firmware", "plugin")) and "IOMMU" not in remedy
    machine.remove("sys/class/iommu/ivhd0")
    assert "IOMMU" in problem(machine).remedy


def test_a_distribution_that_says_nothing_sensible_is_told_all_ways(machine: Machine) -> None:
    distribution(machine, ("ubuntu", "strange", "", "unknown"))
    assert "ppa:lemonade-team/stable" in problem(machine).remedy
    machine.remove("etc/os-release")
    assert "26.04" in problem(machine).remedy


def test_a_low_limit_is_raised_where_terminals_get_it(machine: Machine) -> None:
    machine.limit_memlock("8388608")
    remedy = problem(machine).remedy
    assert "prlimit" in remedy and "user@.service.d" in remedy and "LimitMEMLOCK" in remedy
