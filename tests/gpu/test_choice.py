from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import ConfigError, OutOfMemoryError, VulkanUnavailableError
from unicorn_async.gpu.choice import select_device
from unicorn_async.gpu.host import HostGraphics

from .made_up import DISCRETE, GIB, INTEGRATED, SOFTWARE

if TYPE_CHECKING:
    from pathlib import Path

ALL = (SOFTWARE, INTEGRATED, DISCRETE)


@pytest.fixture
def host(tmp_path: Path) -> HostGraphics:
    """A host whose kernel drives no GPU."""
    return HostGraphics(tmp_path / "dri", tmp_path / "drm")


def test_the_discrete_gpu_is_preferred() -> None:
    assert select_device(ALL, None) is DISCRETE


def test_a_model_too_large_for_the_discrete_gpu_goes_to_the_integrated_one() -> None:
    assert select_device(ALL, None, needed_bytes=7 * GIB) is INTEGRATED


def test_host_memory_counts_for_an_integrated_gpu_and_not_for_a_discrete_one() -> None:
    assert INTEGRATED.available_bytes == 28 * GIB
    assert DISCRETE.available_bytes == 6 * GIB


def test_of_two_like_gpus_the_larger_is_taken_then_the_first() -> None:
    twin = replace(DISCRETE, index=3)
    larger = replace(twin, index=4, heaps=(replace(twin.heaps[0], nbytes=80 * GIB, budget=80 * GIB),))
    assert select_device((twin, DISCRETE), None) is DISCRETE
    assert select_device((DISCRETE, twin, larger), None) is larger


def test_a_software_device_is_not_taken_unasked(host: HostGraphics) -> None:
    with pytest.raises(VulkanUnavailableError, match=r"no GPU found, only a software device.*\n.*0: llvmpipe"):
        select_device((SOFTWARE,), None, host=host)


def test_a_software_device_is_taken_where_it_is_allowed_and_there_is_no_gpu() -> None:
    assert select_device((SOFTWARE,), None, allow_software=True) is SOFTWARE
    assert select_device(ALL, None, allow_software=True) is DISCRETE


@pytest.mark.parametrize("wanted", ["0", "llvmpipe", "LLVMPIPE", "llvm"])
def test_a_software_device_is_taken_by_index_or_name(wanted: str) -> None:
    assert select_device(ALL, wanted) is SOFTWARE


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"device 'arc': no device has this(.|\n)*780M(.|\n)*RTX 4060"):
        select_device(ALL, "arc")


def test_an_index_out_of_range_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"device 7: there is no device of this index(.|\n)*780M"):
        select_device(ALL, "7")


def test_an_ambiguous_name_asks_for_an_index() -> None:
    twin = replace(DISCRETE, index=3)
    with pytest.raises(ConfigError, match=r"fits 2 devices, give an index:\n  2: NVIDIA(.|\n)*\n  3: NVIDIA"):
        select_device((*ALL, twin), "RTX")


@pytest.mark.parametrize("wanted", ["", "  "])
def test_an_empty_name_fits_nothing(wanted: str) -> None:
    with pytest.raises(ConfigError, match="no device has this in its name"):
        select_device((DISCRETE,), wanted)


def test_no_device_at_all_is_an_error(host: HostGraphics) -> None:
    with pytest.raises(VulkanUnavailableError, match=r"no Vulkan device found; the kernel drives no GPU"):
        select_device((), None, host=host)


def test_a_gpu_that_the_user_may_not_open_names_the_group(host: HostGraphics, monkeypatch: pytest.MonkeyPatch) -> None:
    host.dev_dri.mkdir()
    (host.dev_dri / "renderD128").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr("unicorn_async.gpu.host._group_name", lambda path: "render")
    with pytest.raises(VulkanUnavailableError, match=r"renderD128.*join group `render`.*usermod -aG render"):
        select_device((SOFTWARE,), None, host=host)


def test_a_gpu_without_its_vulkan_driver_says_so(host: HostGraphics) -> None:
    host.dev_dri.mkdir()
    (host.dev_dri / "renderD128").touch()
    with pytest.raises(VulkanUnavailableError, match="its Vulkan driver is not installed"):
        select_device((SOFTWARE,), None, host=host)


def test_a_model_larger_than_all_memory_states_both_sizes(host: HostGraphics) -> None:
    folder = host.sys_drm / "card1" / "device"
    folder.mkdir(parents=True)
    for name, size in (("vram_total", 1), ("vram_used", 1), ("gtt_total", 15), ("gtt_used", 2)):
        (folder / f"mem_info_{name}").write_text(f"{size * GIB}\n")
    with pytest.raises(OutOfMemoryError) as caught:
        select_device(ALL, None, needed_bytes=54 * GIB, host=host)
    text = str(caught.value)
    assert "54.00 GiB (57982058496 bytes) needed, 28.00 GiB" in text
    assert "GTT 2.00 GiB" in text
    assert "ttm.pages_limit" in text


def test_a_wanted_device_that_is_too_small_is_an_error() -> None:
    with pytest.raises(OutOfMemoryError, match=r"RTX 4060: 7.00 GiB .* needed, 6.00 GiB .* available"):
        select_device(ALL, "RTX", needed_bytes=7 * GIB)


def test_a_device_that_lacks_a_requirement_is_passed_over() -> None:
    old = replace(DISCRETE, missing=("synchronization2",))
    assert select_device((old, INTEGRATED), None) is INTEGRATED
