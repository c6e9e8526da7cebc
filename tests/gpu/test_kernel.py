from __future__ import annotations

import json
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from unicorn_async.errors import ConfigError, DeviceError, MissingFeatureError
from unicorn_async.gpu.background_calls import BackgroundCalls
from unicorn_async.gpu.kernel import KernelRequest

from .conftest import SHADERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from unicorn_async.gpu.device import Device


@pytest.fixture
def shaders(tmp_path: Path) -> Path:
    """A copy of the test shaders, to be damaged."""
    return shutil.copytree(SHADERS, tmp_path / "shaders")


def test_push_constants_are_packed_at_their_offsets(toy: Device) -> None:
    packed = toy.kernels.get("scale_add").pack(add=0.5, n=3, y=1 << 63, x=16)
    assert packed == struct.pack("<QQIf", 16, 1 << 63, 3, 0.5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": 1, "y": 2, "n": 3}, r"missing \['add'\], unknown \[\]"),
        ({"x": 1, "y": 2, "n": 3, "add": 0, "z": 1}, r"missing \[\], unknown \['z'\]"),
        ({"x": 1, "y": 2, "count": 3, "add": 0}, r"missing \['n'\], unknown \['count'\]"),
        ({"x": 1, "y": 2, "n": 1 << 32, "add": 0}, "'n': 4294967296"),
        ({"x": -1, "y": 2, "n": 1, "add": 0}, "'x': -1"),
    ],
)
def test_wrong_push_constants_are_named(toy: Device, fields: dict[str, int | float], message: str) -> None:
    with pytest.raises(ConfigError, match=f"scale_add: .*{message}"):
        toy.kernels.get("scale_add").pack(**fields)


def test_a_constant_may_set_the_workgroups_size(toy: Device) -> None:
    assert toy.kernels.get("scale_add").workgroup == (64, 1, 1)
    kernel = toy.kernels.get("scale_add", constants={"WORKGROUP": 32, "SCALE": 3.0})
    assert kernel.workgroup == (32, 1, 1)
    assert kernel.variant == "SCALE=3.0,WORKGROUP=32"


def test_the_same_request_gives_the_same_kernel(toy: Device) -> None:
    first = toy.kernels.get("scale_add", constants={"WORKGROUP": 32, "SCALE": 5.0})
    assert toy.kernels.get("scale_add", constants={"SCALE": 5.0, "WORKGROUP": 32}) is first
    assert toy.kernels.get("scale_add", constants={"SCALE": 6.0, "WORKGROUP": 32}) is not first


def test_threads_that_ask_for_one_kernel_share_one_pipeline(toy: Device) -> None:
    before = toy.kernels.num_kernels
    with ThreadPoolExecutor(8) as pool:
        kernels = list(pool.map(lambda _: toy.kernels.get("scale_add", constants={"SCALE": 9.0}), range(32)))
    assert len(set(kernels)) == 1
    assert toy.kernels.num_kernels == before + 1


def test_prepare_returns_kernels_in_the_order_asked_for(toy: Device) -> None:
    requests = [KernelRequest("scale_add", {"SCALE": float(scale)}) for scale in (11, 12, 11, 13)]
    kernels = toy.kernels.prepare(requests)
    assert [kernel.variant for kernel in kernels] == ["SCALE=11.0", "SCALE=12.0", "SCALE=11.0", "SCALE=13.0"]
    assert kernels[0] is kernels[2]
    assert toy.kernels.prepare([]) == []


def test_prepare_raises_what_one_of_them_raises(toy: Device) -> None:
    with pytest.raises(MissingFeatureError):
        toy.kernels.prepare([KernelRequest("scale_add"), KernelRequest("unobtainable")])


@pytest.fixture
def stepped_back(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with every call that steps back."""
    calls: list[int] = []
    call = BackgroundCalls.call

    def counted(background: BackgroundCalls, *arguments: Any) -> int:
        calls.append(call(background, *arguments))
        return calls[-1]

    monkeypatch.setattr(BackgroundCalls, "call", counted)
    return calls


def test_what_is_prepared_steps_back_unless_it_is_urgent(
    open_device: Callable[..., Device], stepped_back: list[int]
) -> None:
    device = open_device()
    requests = [KernelRequest("scale_add", {"SCALE": float(n)}, urgent=n < 2) for n in range(5)]
    device.kernels.prepare(requests)
    device.kernels.get("scale_add", constants={"SCALE": 1.0})
    device.kernels.prepare([KernelRequest("scale_add", {"SCALE": 9.0})])
    assert len(stepped_back) == 4


def test_nothing_steps_back_once_a_kernel_is_awaited(
    open_device: Callable[..., Device], stepped_back: list[int]
) -> None:
    device = open_device()
    device.kernels.get("scale_add", constants={"SCALE": 1.0})
    device.kernels.prepare([KernelRequest("scale_add", {"SCALE": float(n)}) for n in range(5)])
    assert not stepped_back


def test_an_unknown_entry_lists_what_there_is(toy: Device) -> None:
    with pytest.raises(
        ConfigError, match=r"kernel nothing: not in the shader manifest.*\['scale_add', 'unobtainable'\]"
    ):
        toy.kernels.get("nothing")


def test_an_unknown_constant_lists_what_there_is(toy: Device) -> None:
    with pytest.raises(ConfigError, match=r"scale_add: unknown constants \['ROWS'\]; it has \['NEGATE'"):
        toy.kernels.get("scale_add", constants={"ROWS": 2})


def test_a_missing_feature_is_named_each_time(toy: Device) -> None:
    for _ in range(2):
        with pytest.raises(MissingFeatureError, match=r"kernel unobtainable: .* lacks no_such_feature$"):
            toy.kernels.get("unobtainable")


def test_a_subgroup_size_that_the_device_lacks_is_refused(toy: Device) -> None:
    with pytest.raises(MissingFeatureError, match="kernel scale_add: subgroups of 4096"):
        toy.kernels.get("scale_add", subgroup_size=4096)
    assert toy.kernels.get("scale_add").subgroup_size == toy.info.subgroup_size


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_a_workgroup_that_the_device_lacks_is_refused(toy: Device, size: int) -> None:
    with pytest.raises(MissingFeatureError, match=f"kernel scale_add: a workgroup of {size}×1×1"):
        toy.kernels.get("scale_add", constants={"WORKGROUP": size})


def test_a_changed_module_is_refused(open_device: Callable[..., Device], shaders: Path) -> None:
    module = shaders / "spirv" / "scale_add.spv"
    module.write_bytes(module.read_bytes() + bytes(4))
    with pytest.raises(ConfigError, match=r"scale_add.spv: SHA-256 .*, the manifest says"):
        open_device(shader_dir=shaders).kernels.get("scale_add")


def test_an_absent_module_is_refused(open_device: Callable[..., Device], shaders: Path) -> None:
    (shaders / "spirv" / "scale_add.spv").unlink()
    with pytest.raises(ConfigError, match=r"scale_add.spv: No such file.*lacks compiled shaders"):
        open_device(shader_dir=shaders).kernels.get("scale_add")


def test_an_absent_manifest_is_an_error_when_it_is_needed(open_device: Callable[..., Device], tmp_path: Path) -> None:
    device = open_device(shader_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"manifest.json: No such file.*lacks compiled shaders"):
        device.kernels.get("scale_add")


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "[]",
        "{}",
        '{"entries": []}',
        '{"entries": {"scale_add": 3}}',
        '{"entries": {"scale_add": {}}}',
    ],
)
def test_a_damaged_manifest_is_refused(open_device: Callable[..., Device], shaders: Path, damage: str) -> None:
    (shaders / "manifest.json").write_text(damage)
    with pytest.raises(ConfigError, match=r"manifest.json: damaged"):
        open_device(shader_dir=shaders).kernels.get("scale_add")


@pytest.mark.parametrize(
    ("field", "value"),
    [("push_bytes", 132), ("push_bytes", 8), ("workgroup", [1, 1]), ("requires", "float16"), ("spec_constants", [])],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    open_device: Callable[..., Device], shaders: Path, field: str, value: object
) -> None:
    manifest = json.loads((shaders / "manifest.json").read_text())
    manifest["entries"]["scale_add"][field] = value
    (shaders / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=r"manifest.json: damaged"):
        open_device(shader_dir=shaders).kernels.get("scale_add")


def test_a_closed_library_builds_nothing(open_device: Callable[..., Device]) -> None:
    device = open_device()
    device.kernels.get("scale_add")
    device.close()
    with pytest.raises(DeviceError, match="scale_add: asked for after the device was closed"):
        device.kernels.get("scale_add")
