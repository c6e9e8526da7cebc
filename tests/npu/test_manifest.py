from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.npu.builds import DIALECT, lanes_of, write_build
from unicorn_async.errors import NpuBuildError
from unicorn_async.npu.geometry import NPU1, NPU2
from unicorn_async.npu.manifest import build_dir, find_build, read_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.npu.manifest import Build


def test_a_build_is_found_with_what_it_was_built_of(tmp_path: Path) -> None:
    write_build(tmp_path, NPU2, 128)
    found = find_build(tmp_path, NPU2, 128)
    assert found.chip is NPU2 and found.head_dim == 128
    assert found.dialect == DIALECT and found.lanes == lanes_of(NPU2)
    assert found.toolchain == {"mlir-aie": "none: for the test double"}


def test_a_missing_build_is_told_with_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(NpuBuildError, match=r"no build at all in .*unicorn npu build.*--chip npu1 --head-dim 64"):
        find_build(tmp_path / "nothing", NPU1, 64)
    write_build(tmp_path, NPU1, 128)
    with pytest.raises(NpuBuildError, match="found only attention_npu1_d128"):
        find_build(tmp_path, NPU2, 128)


def test_a_build_for_another_chip_under_this_ones_name_is_refused(tmp_path: Path) -> None:
    other = write_build(tmp_path, NPU2, 64)
    other.xclbin.with_suffix(".json").rename(tmp_path / "attention_npu1_d64.json")
    with pytest.raises(NpuBuildError, match="expected a build for npu1 and head_dim 64, got one for npu2 and 64"):
        find_build(tmp_path, NPU1, 64)


def test_an_xclbin_that_has_changed_or_is_gone_is_refused(build: Build) -> None:
    build.xclbin.write_bytes(b"other")
    with pytest.raises(NpuBuildError, match="expected SHA-256"):
        find_build(build.xclbin.parent, build.chip, build.head_dim)
    build.xclbin.unlink()
    with pytest.raises(NpuBuildError, match="No such file"):
        find_build(build.xclbin.parent, build.chip, build.head_dim)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), 2),
        (("chip",), "npu9"),
        (("head_dim",), 96),
        (("xclbin",), "../elsewhere.xclbin"),
        (("lanes",), [[0, 0, 0]]),
        (("lanes",), [[0, 0, 0]] * 8),
        (("lanes", 0), [0, 2, 0]),
        (("lanes", 0), ["x", 0, 0]),
        (("lanes", 0), [0, 0]),
        (("instructions", "header"), [1]),
        (("instructions", "header"), [1, -1]),
        (("instructions", "header"), [1, 1 << 32]),
        (("instructions", "descriptor"), [0, 0, 0, 0, 0]),
        (("instructions", "descriptor"), [0, 1, 0, 0, 0, 1 << 25]),
        (("instructions", "preamble"), [[0] * 7]),
        (("instructions", "preamble"), [[3] * 6]),
        (("instructions",), None),
        (("toolchain",), 5),
    ],
)
def test_a_manifest_that_no_build_writes_is_refused(build: Build, path: tuple[Any, ...], value: Any) -> None:
    file = build.xclbin.with_suffix(".json")
    fields = json.loads(file.read_text())
    place = fields
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file.write_text(json.dumps(fields))
    with pytest.raises(NpuBuildError, match=str(file)):
        read_manifest(file)


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "null", "\ud800", "{}", "[" * 100000, " " * (1 << 20) + "{}"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "attention_npu1_d64.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(NpuBuildError, match="attention_npu1_d64"):
        read_manifest(file)


def test_the_folder_of_builds_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNICORN_NPU_BUILD", str(tmp_path))
    assert build_dir() == tmp_path
    monkeypatch.delenv("UNICORN_NPU_BUILD")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert build_dir() == tmp_path / "unicorn" / "npu"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert build_dir().parts[-3:] == ("share", "unicorn", "npu")
