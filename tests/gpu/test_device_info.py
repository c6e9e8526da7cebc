from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from unicorn_async.gpu.binding import load_api
from unicorn_async.gpu.device_info import CooperativeMatrixShape
from unicorn_async.gpu.physical import PhysicalDevice

from .made_up import GIB, INTEGRATED, SOFTWARE


@pytest.mark.parametrize(
    ("shape", "feature"),
    [
        (("f16", "f16", "f32", "f32", "subgroup"), "cooperative_matrix_f16_f32_16x8x4"),
        (("s8", "s8", "s32", "s32", "subgroup"), "cooperative_matrix_s8_s32_16x8x4"),
        (("s8", "u8", "s32", "s32", "subgroup"), None),
        (("f16", "f16", "f16", "f32", "subgroup"), None),
        (("f16", "f16", "f32", "f32", "workgroup"), None),
    ],
)
def test_a_matrix_shape_has_the_name_that_shaders_require(
    shape: tuple[str, str, str, str, str], feature: str | None
) -> None:
    assert CooperativeMatrixShape(16, 8, 4, *shape).feature == feature


def test_lacking_features_keep_their_order() -> None:
    assert SOFTWARE.lacks(["zebra", "float16", "ant"]) == ("zebra", "ant")


def test_everything_becomes_json() -> None:
    parsed = json.loads(json.dumps(INTEGRATED.to_json()))
    assert parsed["type"] == "integrated"
    assert parsed["api_version"] == "1.3.230"
    assert parsed["software"] is False
    assert parsed["heaps"][0]["used"] == 2 * GIB
    assert parsed["cooperative_matrix"][0]["a"] == "f16"


@pytest.mark.parametrize(
    ("extension", "kind", "field"),
    [
        ("VK_AMD_shader_core_properties2", "VkPhysicalDeviceShaderCoreProperties2AMD", "activeComputeUnitCount"),
        ("VK_NV_shader_sm_builtins", "VkPhysicalDeviceShaderSMBuiltinsPropertiesNV", "shaderSMCount"),
        ("VK_EXT_memory_budget", "", ""),
    ],
)
def test_two_vendors_drivers_say_how_many_compute_units_there_are(extension: str, kind: str, field: str) -> None:
    api = load_api()

    class Driver:
        def vkGetPhysicalDeviceProperties2(self, _: object, answer: Any) -> None:
            setattr(api.ffi.cast(f"{kind} *", answer.pNext), field, 132)

    asked: Any = SimpleNamespace(
        has_extension=lambda name: name == extension, handle=None, _api=SimpleNamespace(struct=api.struct, lib=Driver())
    )
    assert PhysicalDevice._compute_units(asked) == (132 if kind else 0)
