from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from unicorn_async.gpu.device import Device


@pytest.fixture
def saved(open_device: Callable[..., Device], tmp_path: Path) -> Path:
    """The file of a device that compiled a kernel."""
    device = open_device(cache_dir=tmp_path / "cache")
    device.kernels.get("scale_add")
    assert device.kernels.cache.loaded_bytes == 0
    assert device.kernels.save_cache()
    device.close()
    (path,) = (tmp_path / "cache").iterdir()
    return path


def test_a_saved_cache_is_loaded_by_the_next_device(open_device: Callable[..., Device], saved: Path) -> None:
    device = open_device(cache_dir=saved.parent)
    assert device.kernels.cache.loaded_bytes >= 32
    device.kernels.get("scale_add")


def test_the_file_is_named_after_device_and_driver(device: Device, saved: Path) -> None:
    assert device.info.device_uuid in saved.name
    assert f"{device.info.driver_version:08x}" in saved.name


@pytest.mark.parametrize("position", [0, 25, 60, -1])
def test_a_damaged_file_is_ignored_and_replaced(
    open_device: Callable[..., Device], saved: Path, caplog: pytest.LogCaptureFixture, position: int
) -> None:
    content = bytearray(saved.read_bytes())
    content[position] ^= 0xFF
    saved.write_bytes(content)
    device = open_device(cache_dir=saved.parent)
    assert device.kernels.cache.loaded_bytes == 0
    assert "damaged, ignored" in caplog.text
    assert device.kernels.save_cache()
    assert open_device(cache_dir=saved.parent).kernels.cache.loaded_bytes > 0


@pytest.mark.parametrize("length", [0, 10, 52, 60])
def test_a_file_cut_short_is_ignored(open_device: Callable[..., Device], saved: Path, length: int) -> None:
    saved.write_bytes(saved.read_bytes()[:length])
    assert open_device(cache_dir=saved.parent).kernels.cache.loaded_bytes == 0


def test_a_sound_file_of_another_driver_is_ignored(
    open_device: Callable[..., Device], saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = saved.read_bytes()
    magic, data = content[:20], bytearray(content[52:])
    data[16:32] = bytes(16)  # the UUID in the driver's header
    saved.write_bytes(magic + hashlib.sha256(data).digest() + data)
    assert open_device(cache_dir=saved.parent).kernels.cache.loaded_bytes == 0
    assert "of another device or driver, ignored" in caplog.text


def test_a_folder_that_cannot_be_written_is_only_a_warning(
    open_device: Callable[..., Device], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    device = open_device(cache_dir=tmp_path / "file")
    device.kernels.get("scale_add")
    with caplog.at_level(logging.WARNING):
        assert not device.kernels.save_cache()
    assert "not written" in caplog.text


def test_writing_leaves_no_partial_file(saved: Path) -> None:
    assert [path.suffix for path in saved.parent.iterdir()] == [".bin"]


def test_no_folder_means_no_file(open_device: Callable[..., Device]) -> None:
    device = open_device(cache_dir=None)
    assert not device.kernels.save_cache()
