from __future__ import annotations

import json

import pytest

from unicorn_async.gpu.device_info import CooperativeMatrixShape

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
