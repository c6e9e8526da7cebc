from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from unicorn_async.errors import MissingFeatureError
from unicorn_async.gpu.arena import Arena
from unicorn_async.gpu.command import CommandPool, TimestampPool
from unicorn_async.gpu.device import Device
from unicorn_async.gpu.instance import Instance
from unicorn_async.gpu.memory import MemoryKind
from unicorn_async.gpu.timeline import Timeline

from .conftest import SHADERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from unicorn_async.gpu.device_context import Closable
    from unicorn_async.gpu.device_info import DeviceInfo


def test_a_device_that_lacks_requirements_names_them_all(instance: Instance, info: DeviceInfo, tmp_path: Path) -> None:
    poor = replace(info, missing=("bufferDeviceAddress", "synchronization2"))
    with pytest.raises(MissingFeatureError, match="lacks bufferDeviceAddress, synchronization2"):
        Device.open(instance, poor, cache_dir=None, shader_dir=tmp_path)


def test_the_device_under_test_has_what_is_required(info: DeviceInfo) -> None:
    assert info.missing == ()
    assert info.max_push_constants >= 128
    assert info.min_subgroup_size <= info.subgroup_size <= info.max_subgroup_size
    assert info.available_bytes > 0


def test_objects_are_counted_from_creation_to_close(toy: Device) -> None:
    before = toy.live_objects()
    made: list[Closable] = [Timeline(toy), CommandPool(toy, toy.compute), TimestampPool(toy, 4)]
    assert toy.live_objects() - before == {"Timeline": 1, "CommandPool": 1, "TimestampPool": 1}
    for thing in made:
        thing.close()
    assert toy.live_objects() == before


def test_many_rounds_of_work_leave_nothing(toy: Device) -> None:
    gc.collect()
    before = toy.live_objects(), toy.memory.num_buffers
    for _ in range(20):
        pool, arena = CommandPool(toy, toy.compute), Arena(toy.memory, MemoryKind.DEVICE, 4096)
        recorder = pool.recorder()
        recorder.fill(arena.allocate(1024).buffer, 0, 1024, 1)
        toy.compute.timeline.wait(toy.compute.submit([recorder.end()]), timeout_s=30)
        arena.close()
        pool.close()
    assert (toy.live_objects(), toy.memory.num_buffers) == before


def test_closing_the_device_closes_everything_on_it(open_device: Callable[..., Device]) -> None:
    device = open_device()
    pool = CommandPool(device, device.compute)
    Timeline(device, name="left")
    TimestampPool(device, 2)
    buffer = device.memory.allocate(1 << 20, MemoryKind.DEVICE, name="left")
    recorder = pool.recorder()
    recorder.fill(buffer, 0, 1 << 20, 1)
    device.compute.submit([recorder.end()])
    device.close()
    device.close()
    assert not device.live_objects()
    assert buffer.owner is None


def test_an_extension_that_the_package_does_not_use_is_enabled_on_request(instance: Instance, info: DeviceInfo) -> None:
    name, struct = "VK_EXT_custom_border_color", "VkPhysicalDeviceCustomBorderColorFeaturesEXT"
    if not instance.physical(info).has_extension(name):
        pytest.skip(f"{info.name} lacks {name}")
    extra = name, instance.api.struct(struct, customBorderColors=1)
    with Device.open(instance, info, cache_dir=None, shader_dir=SHADERS, extra=extra) as device:
        assert device.compute.timeline.completed() == 0


def test_a_device_that_is_not_closed_warns(instance: Instance, info: DeviceInfo) -> None:
    device = Device.open(instance, info, cache_dir=None, shader_dir=SHADERS)
    with pytest.warns(ResourceWarning, match="was not closed"):
        device.__del__()
    device.close()


def test_an_instance_closes_once_and_warns_when_forgotten() -> None:
    with Instance.create() as instance:
        assert instance.devices()
        with pytest.warns(ResourceWarning, match="was not closed"):
            instance.__del__()
    instance.close()
