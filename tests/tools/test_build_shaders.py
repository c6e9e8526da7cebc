from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

import build_shaders

TABLE = (
    '[scale]\nformats = ["f16", "f32"]\n[scale.variants]\nfast = { defines = { LANES = 4 }, requires = ["float16"] }\n'
)


@pytest.fixture
def shaders(tmp_path: Path) -> Path:
    """A folder with one source, built as far as `check` can see."""
    (tmp_path / "quant").mkdir()
    (tmp_path / "spirv").mkdir()
    (tmp_path / "variants.toml").write_text(TABLE)
    (tmp_path / "scale.comp").write_text("#version 460\n#include FORMAT\nvoid main() {}\n")
    (tmp_path / "quant" / "f16.glsl").write_text('#include "quant/shared.glsl"\n')
    (tmp_path / "quant" / "f32.glsl").write_text("")
    (tmp_path / "quant" / "shared.glsl").write_text("")
    records = {}
    for entry in build_shaders.read_entries(tmp_path):
        module = entry.name.encode()
        (tmp_path / "spirv" / f"{entry.name}.spv").write_bytes(module)
        records[entry.name] = {
            "source_hash": build_shaders.source_hash(tmp_path, entry),
            "spirv_sha256": hashlib.sha256(module).hexdigest(),
        }
    (tmp_path / "manifest.json").write_text(json.dumps({"entries": records}))
    return tmp_path


def test_a_table_makes_an_entry_per_format_and_variant(shaders: Path) -> None:
    entries = build_shaders.read_entries(shaders)
    assert [entry.name for entry in entries] == ["scale_f16_fast", "scale_f32_fast"]
    assert entries[0].defines == (("LANES", "4"),)
    assert entries[0].requires == ("float16",)
    assert build_shaders.source_files(shaders, entries[0]) == ["scale.comp", "quant/f16.glsl", "quant/shared.glsl"]
    assert build_shaders.source_files(shaders, entries[1]) == ["scale.comp", "quant/f32.glsl"]


def test_an_unknown_key_is_refused(shaders: Path) -> None:
    (shaders / "variants.toml").write_text('[scale]\nformat = "f16"\n')
    with pytest.raises(build_shaders.BuildError, match="format"):
        build_shaders.read_entries(shaders)


def test_check_accepts_what_was_built(shaders: Path) -> None:
    assert build_shaders.check(shaders) == []


@pytest.mark.parametrize("name", ["scale.comp", "quant/f16.glsl", "quant/shared.glsl"])
def test_check_finds_entries_older_than_a_source_or_include(shaders: Path, name: str) -> None:
    path = shaders / name
    path.write_text(path.read_text() + "// changed\n")
    faults = build_shaders.check(shaders)
    assert "scale_f16_fast: built from other sources than these" in faults
    assert ("scale_f32_fast: built from other sources than these" in faults) == (name == "scale.comp")


def test_check_finds_missing_changed_and_strange_modules(shaders: Path) -> None:
    (shaders / "spirv" / "scale_f16_fast.spv").write_bytes(b"other")
    (shaders / "spirv" / "scale_f32_fast.spv").rename(shaders / "spirv" / "stranger.spv")
    (shaders / "forgotten.comp").write_text("#version 460\n")
    faults = build_shaders.check(shaders)
    assert [fault.split(":")[0] for fault in faults] == [
        "forgotten.comp",
        "scale_f16_fast",
        "scale_f32_fast",
        "stranger",
    ]
