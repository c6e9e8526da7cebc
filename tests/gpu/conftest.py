"""A device of its own, with the small shaders beside this file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from unicorn_async.gpu.device import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unicorn_async.gpu.device_info import DeviceInfo
    from unicorn_async.gpu.instance import Instance

SHADERS = Path(__file__).parent / "shaders"


@pytest.fixture(scope="session")
def info(device: Device) -> DeviceInfo:
    """What the device under test is."""
    return device.info


@pytest.fixture(scope="session")
def toy(instance: Instance, info: DeviceInfo) -> Iterator[Device]:
    """A second device on the same hardware, with the test shaders."""
    with Device.open(instance, info, cache_dir=None, shader_dir=SHADERS) as opened:
        yield opened


@pytest.fixture
def open_device(instance: Instance, info: DeviceInfo) -> Iterator[Callable[..., Device]]:
    """Opens devices that are closed after the test."""
    opened: list[Device] = []

    def open_one(*, cache_dir: Path | None = None, shader_dir: Path = SHADERS) -> Device:
        opened.append(Device.open(instance, info, cache_dir=cache_dir, shader_dir=shader_dir))
        return opened[-1]

    yield open_one
    for device in opened:
        device.close()


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that leaves an object or a buffer on the shared device."""
    if "toy" not in request.fixturenames:
        yield
        return
    device: Device = request.getfixturevalue("toy")
    before = device.live_objects(), device.memory.num_buffers, device.memory.used_bytes
    yield
    assert (device.live_objects(), device.memory.num_buffers, device.memory.used_bytes) == before
