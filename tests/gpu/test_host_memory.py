"""Free host memory under made-up kernels and control groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unicorn_async.gpu.host_memory import HostMemory

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture
def host(tmp_path: Path) -> HostMemory:
    """A host with 1000 MiB free, whose groups the test makes."""
    memory = HostMemory(tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "groups")
    memory.meminfo.write_text(f"MemTotal:  {4000 * 1024} kB\nMemAvailable:  {1000 * 1024} kB\n")
    return memory


def group(folder: Path, *, cached: int = 0, **values: int | str) -> None:
    """Make a group of version 2; sizes are in MiB, `cached` is page cache that is part of `current`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / f"memory.{name}").write_text(f"{value if isinstance(value, str) else value * MIB}\n")
    (folder / "memory.stat").write_text(f"anon 1\nactive_file {cached * MIB}\ninactive_file 0\nfile_dirty x\n")


def group_v1(folder: Path, *, limit: int, usage: int, cached: int = 0) -> None:
    """Make a group of version 1, sizes in bytes."""
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"cache 7\ntotal_inactive_file {cached}\ntotal_active_file 0\n")


def test_without_groups_it_is_what_the_kernel_has(host: HostMemory, tmp_path: Path) -> None:
    assert host.available_bytes() == 1000 * MIB
    assert HostMemory(tmp_path / "none", tmp_path / "none", tmp_path / "none").available_bytes() is None


def test_a_group_without_limits_changes_nothing(host: HostMemory) -> None:
    host.membership.write_text("0::/user\n")
    group(host.cgroups / "user", max="max", high="max", current=900)
    assert host.available_bytes() == 1000 * MIB


@pytest.mark.parametrize("name", ["max", "high"])
def test_a_groups_limit_bounds_what_is_left_of_it(host: HostMemory, name: str) -> None:
    host.membership.write_text("0::/user/app\n")
    group(host.cgroups / "user" / "app", **{"max": "max", "high": "max", name: 500}, current=200)
    assert host.available_bytes() == 300 * MIB


def test_the_lower_of_both_limits_counts(host: HostMemory) -> None:
    host.membership.write_text("0::/app\n")
    group(host.cgroups / "app", max=700, high=400, current=100)
    assert host.available_bytes() == 300 * MIB


def test_page_cache_in_a_group_counts_as_free(host: HostMemory) -> None:
    host.membership.write_text("0::/app\n")
    group(host.cgroups / "app", max=500, current=450, cached=400)
    assert host.available_bytes() == 450 * MIB


def test_the_tightest_of_all_groups_above_counts(host: HostMemory) -> None:
    host.membership.write_text("0::/slice/user/app\n")
    group(host.cgroups / "slice" / "user" / "app", max=900, current=0)
    group(host.cgroups / "slice" / "user", max="max", current=0)
    group(host.cgroups / "slice", max=600, current=350)
    assert host.available_bytes() == 250 * MIB


def test_in_a_container_whose_path_is_the_hosts_the_mounts_root_counts(host: HostMemory) -> None:
    host.membership.write_text("0::/docker/0123abcd\n")
    group(host.cgroups, max=300, current=100)
    assert host.available_bytes() == 200 * MIB


def test_a_group_above_its_limit_has_no_room(host: HostMemory) -> None:
    host.membership.write_text("0::/\n")
    group(host.cgroups, max=100, high="max", current=120)
    assert host.available_bytes() == 0


def test_limits_of_version_1_count_from_the_group_upwards(host: HostMemory) -> None:
    host.membership.write_text("9:name=systemd:/x\n4:cpu,memory:/outer/inner\n0::/\n")
    group_v1(host.cgroups / "memory" / "outer" / "inner", limit=9223372036854771712, usage=5 * MIB)
    assert host.available_bytes() == 1000 * MIB
    (host.cgroups / "memory" / "outer" / "memory.limit_in_bytes").write_text(f"{400 * MIB}\n")
    (host.cgroups / "memory" / "outer" / "memory.usage_in_bytes").write_text(f"{300 * MIB}\n")
    (host.cgroups / "memory" / "outer" / "memory.stat").write_text(f"total_inactive_file {50 * MIB}\n")
    assert host.available_bytes() == 150 * MIB


@pytest.mark.parametrize("text", ["", "many\n", "-5\n", "0x10\n"])
def test_a_damaged_limit_is_no_limit(host: HostMemory, text: str) -> None:
    host.membership.write_text("0::/app\n:::\nnonsense\n")
    group(host.cgroups / "app", max=text, current=10)
    assert host.available_bytes() == 1000 * MIB


def test_a_path_upwards_out_of_the_mount_stays_in_it(host: HostMemory) -> None:
    host.membership.write_text("0::/../../app\n")
    group(host.cgroups / "app", max=60, current=10)
    assert host.available_bytes() == 50 * MIB
