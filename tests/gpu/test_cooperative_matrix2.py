from __future__ import annotations

import pytest

from unicorn_async.errors import MissingFeatureError
from unicorn_async.gpu.binding import Api, CData, InstanceHandle, PhysicalDeviceHandle, load_api
from unicorn_async.gpu.cooperative_matrix2 import MATRIX2_FEATURES, features_of, features_struct, flexible_dimensions
from unicorn_async.gpu.device_info import FlexibleMatrixShape

INSTANCE, DEVICE = InstanceHandle(object()), PhysicalDeviceHandle(object())


def test_a_struct_of_features_has_those_that_were_enabled_and_leads_a_chain() -> None:
    api = load_api()
    wanted = {"cooperativeMatrixTensorAddressing", "cooperativeMatrixWorkgroupScope"}
    struct = features_struct(api, wanted)
    words = list(api.ffi.cast("uint32_t *", struct)[0:12])
    assert words == [1000593000, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0]
    assert features_of(api, struct) == wanted < set(MATRIX2_FEATURES)
    assert api.struct("VkPhysicalDeviceFeatures2", pNext=struct).pNext == api.ffi.cast("void *", struct)


def test_flexible_dimensions_are_read_from_the_drivers_structs(monkeypatch: pytest.MonkeyPatch) -> None:
    api = load_api()
    answers = [(16, 8, 16, 0, 0, 1, 1, 0, 2, 256), (32, 16, 32, 0, 0, 0, 0, 0, 2, 128)]

    def driver(device: object, count: CData, items: CData) -> int:
        assert device is DEVICE
        words = api.ffi.cast("uint32_t *", items)
        for index, answer in enumerate(answers if items != api.null else ()):
            assert words[14 * index] == 1000593001
            words[14 * index + 4 : 14 * index + 14] = answer
        count[0] = len(answers)
        return 0

    monkeypatch.setattr(Api, "instance_function", lambda *_, **__: driver)
    assert flexible_dimensions(api, INSTANCE, DEVICE) == tuple(answers)


def test_a_driver_without_the_function_has_no_flexible_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise MissingFeatureError("absent")

    monkeypatch.setattr(Api, "instance_function", absent)
    assert flexible_dimensions(load_api(), INSTANCE, DEVICE) == ()


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [((128, 256, 32), True), ((128, 256, 24), False), ((120, 256, 32), False), ((16, 12, 16), False)],
)
def test_a_flexible_shape_takes_multiples_of_its_sizes(sizes: tuple[int, int, int], *, taken: bool) -> None:
    shape = FlexibleMatrixShape(16, 8, 16, "f16", "f16", "f32", "f32", "workgroup", 256)
    assert shape.takes(*sizes) is taken
