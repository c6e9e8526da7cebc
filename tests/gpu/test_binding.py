from __future__ import annotations

import importlib

import pytest

from unicorn_async.errors import (
    DeviceError,
    DeviceLostError,
    MissingFeatureError,
    OutOfMemoryError,
    VulkanUnavailableError,
)
from unicorn_async.gpu.binding import check, load_api


@pytest.mark.parametrize(
    ("result", "error", "name"),
    [
        (-1, OutOfMemoryError, "VK_ERROR_OUT_OF_HOST_MEMORY"),
        (-2, OutOfMemoryError, "VK_ERROR_OUT_OF_DEVICE_MEMORY"),
        (-4, DeviceLostError, "VK_ERROR_DEVICE_LOST"),
        (-8, MissingFeatureError, "VK_ERROR_FEATURE_NOT_PRESENT"),
        (-9, VulkanUnavailableError, "VK_ERROR_INCOMPATIBLE_DRIVER"),
        (-12345, DeviceError, "VkResult -12345"),
    ],
)
def test_a_failing_result_becomes_the_fitting_exception(result: int, error: type[Exception], name: str) -> None:
    with pytest.raises(error, match=f"vkDoThing: {name}") as caught:
        check(result, "vkDoThing")
    assert type(caught.value) is error


@pytest.mark.parametrize("result", [0, 1, 2, 5])
def test_results_that_are_not_errors_are_returned(result: int) -> None:
    assert check(result, "vkDoThing") == result


def test_a_system_without_the_loader_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError("Cannot find Vulkan SDK version")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(VulkanUnavailableError, match=r"libvulkan.so.1: not found; install .* libvulkan1"):
        load_api.__wrapped__()


def test_structs_get_their_type_and_keep_what_they_point_to() -> None:
    api = load_api()
    application = api.struct("VkApplicationInfo", pApplicationName="unicorn" * 10)
    info = api.struct("VkInstanceCreateInfo", pApplicationInfo=application)
    del application
    assert info.sType == api.vk.VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO
    assert api.text(info.pApplicationInfo.pApplicationName) == "unicorn" * 10
