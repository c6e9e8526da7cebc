from __future__ import annotations

import errno
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.npu.builds import dialect_of, teams_of, write_build
from unicorn_async.errors import NpuBuildError
from unicorn_async.npu.geometry import NPU1, NPU2
from unicorn_async.npu.manifest import build_dir, find_build, find_built, read_manifest
from unicorn_async.npu.sources import own_source_hash, source_hash
from unicorn_async.resources import resource_dir

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.npu.manifest import Build


ROUTE = [3, 0, 0x1D200, 0, 0x0F00, 0x1F00, 28]  # the tokens of column 0's first channel to memory
HEADER = dialect_of(NPU1).header


def test_a_build_is_found_with_what_it_was_built_of(tmp_path: Path) -> None:
    write_build(tmp_path, NPU2, 128)
    found = find_build(tmp_path, NPU2, 128)
    assert found.chip is NPU2 and found.head_dim == 128
    assert found.dialect == dialect_of(NPU2) and found.teams == teams_of(NPU2)
    assert found.toolchain == {"mlir-aie": "none: for the test double"}


def test_a_missing_build_is_told_with_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(NpuBuildError, match=r"no build at all in .*unicorn npu build.*--chip npu1 --head-dim 64"):
        find_build(tmp_path / "nothing", NPU1, 64)
    write_build(tmp_path, NPU1, 128)
    with pytest.raises(NpuBuildError, match="found only attention_npu1_d128"):
        find_build(tmp_path, NPU2, 128)


def test_a_folder_of_builds_that_can_not_be_looked_into_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NpuBuildError, match="File name too long"):
        find_build(tmp_path / ("a" * 300), NPU1, 64)

    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.is_file", refuse)  # root may enter everywhere
    with pytest.raises(NpuBuildError, match=r"attention_npu1_d64\.json: Permission denied"):
        find_build(tmp_path, NPU1, 64)


def test_what_is_built_is_found_whether_it_is_sound_or_not(tmp_path: Path) -> None:
    assert find_built(tmp_path / "nothing", NPU1) == find_built(tmp_path / ("a" * 300), NPU1) == ()
    write_build(tmp_path, NPU1, 64).xclbin.unlink()
    write_build(tmp_path, NPU2, 128)
    write_build(tmp_path, NPU1, 256).xclbin.with_suffix(".json").unlink()
    assert find_built(tmp_path, NPU1) == (64, 256)
    with pytest.raises(NpuBuildError, match=r"expected the manifest of attention_npu1_d256\.xclbin"):
        find_build(tmp_path, NPU1, 256)


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
        (("format",), 1),
        (("format",), True),
        (("columns",), 5),
        (("columns",), -1),
        (("columns",), 4.0),
        (("columns",), True),
        (("columns",), float("nan")),
        (("columns",), "xxx"),
        (("columns",), None),
        (("chip",), "npu9"),
        (("head_dim",), 96),
        (("head_dim",), 64.0),
        (("xclbin",), "../elsewhere.xclbin"),
        (("xclbin",), "elsewhere.xclbin"),
        (("xclbin",), "attention\0.xclbin"),
        (("xclbin",), ".."),
        (("xclbin",), ""),
        (("xclbin",), 5),
        (("sha256",), "0" * 63),
        (("sha256",), None),
        (("source_sha256",), "x" * 64),
        (("source_sha256",), "0" * 64 + "\n"),
        (("products",), "bfp16"),
        (("products",), ["bf16"]),
        (("teams",), [[0, 0, 0]]),
        (("teams",), [[0, 0, 0]] * 8),
        (("teams", 0), [0, 2, 0]),
        (("teams", 0), ["x", 0, 0]),
        (("teams", 0), [0, 0]),
        (("teams", 0), [4, 0, 1]),
        (("teams", 0), [-1, 0, 1]),
        (("teams", 0), [0.5, 0, 1]),
        (("teams", 0), ["0", 0, 1]),
        (("teams", 0), [False, 0, 1]),
        (("instructions", "header"), [1]),
        (("instructions", "header"), [1, -1]),
        (("instructions", "header"), [1, 1 << 32]),
        (("instructions", "header"), [1, True]),
        (("instructions", "descriptor"), [0, 0, 0, 0, 0]),
        (("instructions", "descriptor"), [0, 1, 0, 0, 0, 1 << 25]),
        (("instructions", "preamble"), [[0] * 7]),
        (("instructions", "preamble"), [[3] * 6]),
        (("instructions", "preamble"), {}),
        (("instructions", "preamble"), []),
        (("instructions", "preamble"), [ROUTE] * 45000),
        (("instructions", "preamble", 0), [3, 0, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0xFFFFFFFF, 28]),
        (("instructions", "preamble", 0), [3, 0, 0, 0, 0, 0, 0xFFFFFFFF]),
        (("instructions", "preamble", 0), [*ROUTE[:6], 24]),
        (("instructions", "preamble", 0), [3, 1, *ROUTE[2:]]),
        (("instructions", "preamble", 0), [0x103, *ROUTE[1:]]),
        (("instructions", "preamble", 0, 2), 4 << 25 | 0x1D200),
        (("instructions", "preamble", 0, 2), 1 << 20 | 0x1D200),
        (("instructions", "preamble", 0, 2), 0x1D204),
        (("instructions", "preamble", 0, 2), 0x1D208),
        (("instructions", "preamble", 0, 5), 0x3F00),
        (("instructions", "preamble", 0, 5), 0),
        (("instructions", "preamble", 0, 4), 0x2000),
        (("instructions", "header"), [0, 0]),
        (("instructions", "header"), [1 << 24 | HEADER[0], HEADER[1]]),
        (("instructions", "header"), [HEADER[0] ^ 7 << 16, HEADER[1]]),
        (("instructions", "header"), [HEADER[0], 0x0103]),
        (("instructions", "header"), [HEADER[0], 0x0109]),
        (("instructions", "header"), [HEADER[0], 0x0204]),
        (("instructions",), None),
        (("toolchain",), 5),
        (("toolchain",), []),
        (("toolchain",), {}),
        (("toolchain",), "mlir-aie"),
        (("toolchain",), ["mlir-aie"]),
        (("toolchain", "mlir-aie"), 1.4),
        (("toolchain", "mlir-aie"), "1.4\x1b[2J"),
        (("toolchain", "mlir-aie"), "1" * 1000),
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
    with pytest.raises(NpuBuildError, match=str(file)) as raised:
        read_manifest(file)
    assert len(str(raised.value)) < 1000


def test_teams_outside_of_the_chips_columns_are_told_with_how_many_it_has(build: Build) -> None:
    file = build.xclbin.with_suffix(".json")
    fields = json.loads(file.read_text())
    fields["teams"] = [[column + 4, *channels] for column, *channels in fields["teams"]]
    file.write_text(json.dumps(fields))
    with pytest.raises(NpuBuildError, match=r"expected 8 of them in 4 columns.*column=4"):
        find_build(build.xclbin.parent, NPU1, 64)


def test_a_build_of_other_sources_is_stale(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    file = build.xclbin.with_suffix(".json")
    file.write_text(file.read_text().replace(build.source_sha256, "0" * 64))
    with pytest.raises(
        NpuBuildError, match=rf"stale: .*0{{64}}.*{build.source_sha256}; run `unicorn npu build`.*npu1 --head-dim 64"
    ):
        find_build(build.xclbin.parent, NPU1, 64)
    monkeypatch.setattr("unicorn_async.npu.manifest.own_source_hash", lambda: None)  # nothing to compare with
    assert find_build(build.xclbin.parent, NPU1, 64).source_sha256 == "0" * 64


def test_the_hash_of_the_sources_follows_their_content_and_names(tmp_path: Path) -> None:
    folder = tmp_path / "npu"
    shutil.copytree(resource_dir("npu"), folder)
    hashes = {source_hash(resource_dir("npu"))}
    assert source_hash(folder) in hashes and own_source_hash() in hashes
    (folder / "kernels/attention.cc~").write_text("an editor's")
    (folder / "validate.py").write_text("")
    assert source_hash(folder) in hashes
    for change in (
        lambda: (folder / "attention_design.py").write_text(""),
        lambda: (folder / "kernels/f32.h").write_text(""),
        lambda: (folder / "kernels/f32.h").rename(folder / "kernels/f16.h"),
        lambda: (folder / "kernels/new.h").write_text(""),
    ):
        change()
        assert source_hash(folder) not in hashes
        hashes.add(source_hash(folder))


def test_an_xclbin_that_is_no_file_is_refused_unread(build: Build) -> None:
    build.xclbin.unlink()
    os.mkfifo(build.xclbin)
    with pytest.raises(NpuBuildError, match="expected a file"):
        find_build(build.xclbin.parent, NPU1, 64)


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
