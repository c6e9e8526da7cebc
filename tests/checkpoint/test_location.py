"""Finding a model by its path or by its name in the Hugging Face cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unicorn_async.checkpoint.hub import hub_cache
from unicorn_async.checkpoint.location import find_model, model_name
from unicorn_async.errors import ConfigError, UnsupportedModelError


def add_model(hub: Path, name: str, revision: str, *, main: bool) -> Path:
    repo = hub / ("models--" + name.replace("/", "--"))
    snapshot = repo / "snapshots" / revision
    snapshot.mkdir(parents=True)
    if main:
        (repo / "refs").mkdir(exist_ok=True)
        (repo / "refs" / "main").write_text(revision)
    return snapshot


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    assert find_model(tmp_path) == tmp_path
    assert find_model(str(tmp_path)) == tmp_path


def test_the_bundled_model_is_found_by_its_name_whatever_lies_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    bundled = find_model("demo")
    assert (bundled / "model.safetensors").is_file()
    assert model_name("demo", bundled) == "unicorn-demo"
    assert find_model("./demo") == find_model(Path("demo")) == Path("demo")
    assert model_name("./demo", Path("demo")) == "demo"


def test_a_name_is_found_in_the_cache(tmp_path: Path) -> None:
    snapshot = add_model(tmp_path / "hub", "org/model-1.5b", "abc123", main=True)
    add_model(tmp_path / "hub", "org/model-1.5b", "def456", main=False)
    assert find_model("org/model-1.5b", {"HF_HOME": str(tmp_path)}) == snapshot


def test_the_only_snapshot_is_taken_where_no_branch_is_recorded(tmp_path: Path) -> None:
    snapshot = add_model(tmp_path, "org/model", "abc123", main=False)
    environ = {"HF_HUB_CACHE": str(tmp_path)}
    assert find_model("org/model", environ) == snapshot
    add_model(tmp_path, "org/model", "def456", main=False)
    with pytest.raises(ConfigError, match="no snapshot"):
        find_model("org/model", environ)


def test_a_pipe_is_no_model_and_no_name_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org").mkdir()
    os.mkfifo(tmp_path / "org" / "a.gguf")
    monkeypatch.chdir(tmp_path)
    for model in ("org/a.gguf", tmp_path / "org" / "a.gguf"):
        with pytest.raises(ConfigError, match=r"org/a.gguf: is no regular file$"):
            find_model(model)


def test_the_cache_is_where_hugging_face_puts_it() -> None:
    home = Path.home()
    assert hub_cache({}) == home / ".cache/huggingface/hub"
    assert hub_cache({"XDG_CACHE_HOME": "/x"}) == Path("/x/huggingface/hub")
    assert hub_cache({"XDG_CACHE_HOME": "/x", "HF_HOME": "/h"}) == Path("/h/hub")
    assert hub_cache({"HF_HOME": "/h", "HF_HUB_CACHE": "/c"}) == Path("/c")


def test_a_name_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_model("org/model", {"HF_HOME": str(tmp_path)})
    assert str(tmp_path / "hub" / "models--org--model") in str(caught.value)
    assert "Nothing is downloaded" in str(caught.value)


@pytest.mark.parametrize("name", ["../x", "/no/such/directory", "a/b/c", "", "org/..", "-x", "org/mo del"])
def test_what_is_no_name_is_no_directory_either(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    if name == "":
        assert find_model(name, {}) == Path()
        return
    with pytest.raises(ConfigError):
        find_model(name, {"HF_HOME": str(tmp_path)})


def test_a_branch_cannot_lead_out_of_the_cache(tmp_path: Path) -> None:
    snapshot = add_model(tmp_path, "org/model", "abc", main=True)
    (snapshot.parent.parent / "refs" / "main").write_text("../../..")
    with pytest.raises(ConfigError, match="no snapshot"):
        find_model("org/model", {"HF_HUB_CACHE": str(tmp_path)})


def test_files_are_refused_by_kind(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    (tmp_path / "m.safetensors").touch()
    assert find_model(tmp_path / "m.gguf") == tmp_path / "m.gguf"
    with pytest.raises(ConfigError, match="no GGUF file; give that, or the model's directory"):
        find_model(tmp_path / "m.safetensors")


def test_the_only_gguf_model_of_a_directory_is_taken(tmp_path: Path) -> None:
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "mmproj-m.gguf"):
        (tmp_path / name).touch()
    assert find_model(tmp_path) == tmp_path / "m-00001-of-00002.gguf"
    (tmp_path / "other.gguf").touch()
    with pytest.raises(ConfigError, match=r"2 GGUF models; give one of m-00001-of-00002\.gguf, other\.gguf"):
        find_model(tmp_path)
    (tmp_path / "config.json").touch()
    with pytest.raises(ConfigError, match="2 GGUF models"):
        find_model(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert find_model(tmp_path) == tmp_path


def test_a_configuration_beside_one_gguf_file_changes_nothing(tmp_path: Path) -> None:
    for name in ("config.json", "m-Q4_K_M.gguf", "mmproj-F16.gguf", "imatrix_unsloth.gguf"):
        (tmp_path / name).touch()
    assert find_model(tmp_path) == tmp_path / "m-Q4_K_M.gguf"
    assert model_name(tmp_path, find_model(tmp_path)) == "m-Q4_K_M"


def test_a_gguf_file_without_a_suffix_is_one_by_its_first_bytes(tmp_path: Path) -> None:
    blob = tmp_path / "sha256-0b1c2d"
    blob.write_bytes(b"GGUF\3\0\0\0")
    assert find_model(blob) == blob
    assert model_name(blob, blob) == "sha256-0b1c2d"
    blob.write_bytes(b"GGU")
    with pytest.raises(ConfigError, match="is no GGUF file"):
        find_model(blob)


def test_a_pickle_is_refused_by_its_name_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "RWKV-x070-World-0.1B.pth"
    path.write_bytes(b"PK\3\4")
    with pytest.raises(UnsupportedModelError, match=r"World-0\.1B\.pth, a pickle, .* weights_only=True"):
        find_model(path)


def test_a_repository_of_one_gguf_file_is_found_in_the_cache(tmp_path: Path) -> None:
    snapshot = add_model(tmp_path, "org/model-GGUF", "abc123", main=True)
    (snapshot / "model-Q8_0.gguf").touch()
    assert find_model("org/model-GGUF", {"HF_HUB_CACHE": str(tmp_path)}) == snapshot / "model-Q8_0.gguf"


def test_a_tag_names_one_of_several_gguf_files_in_the_cache(tmp_path: Path) -> None:
    snapshot = add_model(tmp_path, "org/m-GGUF", "abc123", main=True)
    names = ["m-Q4_K_M", "m-Q4_K_S", "m-UD-Q4_K_XL", "m-IQ4_XS", "m-Q8_0", "m-UD-Q8_0", "mmproj-F16"]
    for name in names:
        (snapshot / f"{name}.gguf").touch()
    (snapshot / "BF16").mkdir()
    for number in (1, 2):
        (snapshot / "BF16" / f"m-BF16-0000{number}-of-00002.gguf").touch()
    (snapshot / "Q6_K").mkdir()
    (snapshot / "Q6_K" / "m-Q6_K-00001-of-00002.gguf").touch()

    def found(tag: str) -> str:
        return find_model(f"org/m-GGUF:{tag}", {"HF_HUB_CACHE": str(tmp_path)}).name

    assert found("Q4_K_M") == found("q4_k_m") == found("m-Q4_K_M.gguf") == "m-Q4_K_M.gguf"
    assert found("UD-Q4_K_XL") == found("Q4_K_XL") == "m-UD-Q4_K_XL.gguf"
    assert found("Q8_0") == "m-Q8_0.gguf"
    assert found("UD-Q8_0") == "m-UD-Q8_0.gguf"
    assert found("bf16") == "m-BF16-00001-of-00002.gguf"
    for tag in ("Q5_K_M", "F16", "Q4_K", "Q6_K"):  # of the last one a part is missing
        with pytest.raises(ConfigError, match=rf"org/m-GGUF:{tag}: no GGUF model of that tag .*:BF16, .*:Q4_K_M, "):
            found(tag)
    with pytest.raises(ConfigError, match=r"org/m-GGUF: 7 GGUF models .*; give one of org/m-GGUF:BF16, "):
        find_model("org/m-GGUF", {"HF_HUB_CACHE": str(tmp_path)})
    assert model_name("org/m-GGUF:Q8_0", snapshot / "m-Q8_0.gguf") == "org/m-GGUF:Q8_0"


@pytest.mark.parametrize("name", ["org/m:", "org/m:../x", "org/m:a/b", "org/m:-x", ":Q4_K_M"])
def test_a_tag_is_no_path(tmp_path: Path, name: str) -> None:
    add_model(tmp_path, "org/m", "abc", main=True)
    with pytest.raises(ConfigError, match="no such directory"):
        find_model(name, {"HF_HUB_CACHE": str(tmp_path)})
