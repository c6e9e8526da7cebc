"""What matrix_ceilings.py uses of VK_NV_cooperative_matrix2."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.gpu.made_up import SOFTWARE
from unicorn_async.errors import MissingFeatureError
from unicorn_async.gpu.binding import Api, CData, InstanceHandle, PhysicalDeviceHandle, load_api

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

from matrix2.extension import (
    EXTENSION,
    VULKAN_FEATURES,
    FlexibleMatrixShape,
    enabled,
    features_of,
    features_struct,
    flexible_dimensions,
    flexible_shapes,
)
from matrix2.rate import Matrix2Tile, matrix2_rate

if TYPE_CHECKING:
    from unicorn_async.gpu.instance import Instance

FLEXIBLE = (
    FlexibleMatrixShape(16, 16, 16, "f16", "f16", "f32", "f32", "workgroup", 256),
    FlexibleMatrixShape(16, 8, 16, "f16", "f16", "f16", "f16", "subgroup", 0),
)
INSTANCE, DEVICE = InstanceHandle(object()), PhysicalDeviceHandle(object())


def test_a_struct_of_features_has_those_that_were_enabled_and_leads_a_chain() -> None:
    api = load_api()
    wanted = {"cooperativeMatrixTensorAddressing", "cooperativeMatrixWorkgroupScope"}
    struct = features_struct(api, wanted)
    words = list(api.ffi.cast("uint32_t *", struct)[0:12])
    assert words == [1000593000, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0]
    assert features_of(api, struct) == wanted < set(VULKAN_FEATURES)
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


@pytest.mark.parametrize(
    ("tile", "fits"),
    [
        (Matrix2Tile("f32", 128, 256, 32, 256, 1), True),
        (Matrix2Tile("f32", 128, 256, 32, 128, 1), False),
        (Matrix2Tile("f32", 128, 248, 32, 256, 1), False),
        (Matrix2Tile("f16", 128, 256, 32, 256, 1), False),
    ],
)
def test_a_tile_of_a_workgroup_fits_a_device_that_has_its_types_sizes_and_invocations(
    tile: Matrix2Tile, *, fits: bool
) -> None:
    assert tile.fits(SOFTWARE, FLEXIBLE) is fits
    assert not tile.fits(SOFTWARE, ())


def test_a_tile_divides_products_of_whole_tiles_and_of_whole_unrolled_steps() -> None:
    tile = Matrix2Tile("f32", 128, 256, 32, 256, 4)
    assert tile.divides(512, 43008, 5376)
    assert not tile.divides(500, 43008, 5376)
    assert not tile.divides(512, 43008, 5376 + 64)


@pytest.mark.parametrize(("shape", "rounds"), [((128, 255, 128), None), ((128, 256, 128), 6)])
def test_what_is_no_whole_number_of_tiles_is_refused(shape: tuple[int, int, int], rounds: int | None) -> None:
    nothing: Any = None
    with pytest.raises(ValueError, match="expected multiples of"):
        matrix2_rate(
            nothing, nothing, Matrix2Tile("f32", 128, 256, 32, 256, 4), a=0, b=0, y=0, shape=shape, rounds=rounds
        )


def test_a_device_without_the_extension_is_opened_without_it(instance: Instance) -> None:
    for info in instance.devices():
        found = flexible_shapes(instance.api, instance.physical(info))
        if isinstance(found, str):
            assert found == "the driver does not offer it" or found.startswith("the driver lacks ")
            assert enabled(instance, info) is None
        else:
            name, _ = enabled(instance, info) or ("", None)
            assert name == EXTENSION


def test_an_extra_extension_s_features_are_the_last_of_the_chain(instance: Instance) -> None:
    info = instance.devices()[0]
    api, physical = instance.api, instance.physical(info)
    last = features_struct(api, VULKAN_FEATURES)
    base = "VkBaseOutStructure *"
    plain, extended = (api.ffi.cast(base, chain) for chain in (physical.feature_chain(), physical.feature_chain(last)))
    while plain.pNext != api.null:
        plain, extended = plain.pNext, extended.pNext
    assert extended.pNext == api.ffi.cast(base, last)
