"""What the Hugging Face cache holds is told by the names that ask for it, and removed by them."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

import pytest

from unicorn_async.checkpoint.hub import HubName
from unicorn_async.errors import ConfigError
from unicorn_async.hub.cached import CachedModel, cached_models, is_cached, remove
from unicorn_async.hub.large_file import PARTIAL_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def add(hub: Path, repo: str, files: Mapping[str, bytes], revision: str = "abc", *, main: bool = True) -> Path:
    """Put files where the library does: a blob for each content, and a link."""
    folder = hub / ("models--" + repo.replace("/", "--"))
    for name, content in files.items():
        blob = folder / "blobs" / f"{abs(hash(content)):x}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link = folder / "snapshots" / revision / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    if main:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(revision)
    return folder


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    add(tmp_path, "org/plain", {"config.json": b"{}", "tokenizer.json": b"{}" * 5, "model.safetensors": b"w" * 1000})
    index = b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
    add(
        tmp_path, "org/half", {"config.json": b"{}", "model.safetensors.index.json": index, "model-1.safetensors": b"w"}
    )
    add(tmp_path, "org/one", {"one-Q8_0.gguf": b"g" * 800, "config.json": b"{}"})
    two = {"two-Q4_K_M.gguf": b"g" * 400, "F16/two-F16-00001-of-00002.gguf": b"g" * 70}
    add(tmp_path, "org/two", {**two, "F16/two-F16-00002-of-00002.gguf": b"g" * 7})
    add(tmp_path, "org/words", {"tokenizer.json": b"{}"})
    add(tmp_path, "org/ad", {"adapter_config.json": b"{}", "adapter_model.safetensors": b"w" * 60})
    (tmp_path / "models--org--begun" / "blobs").mkdir(parents=True)
    (tmp_path / "models--org--begun" / "blobs" / "0123.unicorn.incomplete").write_bytes(b"g" * 50)
    (tmp_path / "datasets--org--d").mkdir()
    return {"HF_HUB_CACHE": str(tmp_path)}


def test_everything_is_listed_with_its_size_and_whether_it_is_whole(environ: dict[str, str]) -> None:
    assert cached_models(environ) == [
        CachedModel("org/ad", "adapter", 62, is_whole=True),
        CachedModel("org/begun", "", 50, is_whole=False),
        CachedModel("org/half", "safetensors", 3 + 72, is_whole=False),
        CachedModel("org/one", "Q8_0", 800, is_whole=True),
        CachedModel("org/plain", "safetensors", 1012, is_whole=True),
        CachedModel("org/two:F16", "F16", 77, is_whole=True),
        CachedModel("org/two:Q4_K_M", "Q4_K_M", 400, is_whole=True),
        CachedModel("org/words", "", 2 + 3, is_whole=False),
    ]
    assert cached_models({"HF_HUB_CACHE": "/nonexistent"}) == []


@pytest.mark.parametrize(
    ("repo", "tag", "found"),
    [
        ("org/plain", None, True),
        ("org/plain", "Q8_0", False),
        ("org/half", None, False),
        ("org/one", None, True),
        ("org/one", "q8_0", True),
        ("org/two", None, True),  # whoever loads it is told to choose
        ("org/two", "F16", True),
        ("org/two", "Q5_0", False),
        ("org/words", None, False),
        ("org/begun", None, False),
        ("org/none", None, False),
    ],
)
def test_a_model_is_there_with_all_its_files_or_not_at_all(
    repo: str, tag: str | None, found: bool, environ: dict[str, str]
) -> None:
    assert is_cached(HubName(repo, tag), environ) == found


def test_a_repository_goes_whole(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / ".locks" / "models--org--plain").mkdir(parents=True)
    assert remove(HubName("org/plain", None), environ) == 1012 + 3  # with the name of the revision
    assert not list(tmp_path.glob("**/models--org--plain"))
    with pytest.raises(ConfigError, match=f"org/plain: not in {tmp_path}"):
        remove(HubName("org/plain", None), environ)
    assert remove(HubName("org/begun", None), environ) == 50


def test_what_another_process_brings_stays(environ: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "models--org--begun" / "blobs" / f"{'a' * 64}{PARTIAL_SUFFIX}"
    path.write_bytes(b"g" * 7)
    with path.open("ab") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=r"^org/begun: it is being brought, by another process"):
            remove(HubName("org/begun", None), environ)
        assert path.exists()
    assert remove(HubName("org/begun", None), environ) == 50 + 7


def test_one_gguf_model_goes_with_all_its_parts_and_the_others_stay(environ: dict[str, str], tmp_path: Path) -> None:
    assert remove(HubName("org/two", "F16"), environ) == 77
    assert [model.name for model in cached_models(environ) if "two" in model.name] == ["org/two"]
    assert len(list((tmp_path / "models--org--two" / "blobs").iterdir())) == 1
    with pytest.raises(ConfigError, match="org/two:F16: no GGUF model of that tag"):
        remove(HubName("org/two", "F16"), environ)


def test_a_file_that_another_revision_has_too_stays(environ: dict[str, str], tmp_path: Path) -> None:
    add(tmp_path, "org/two", {"two-Q4_K_M.gguf": b"g" * 400}, "older", main=False)
    assert remove(HubName("org/two", "Q4_K_M"), environ) == 0
    assert (tmp_path / "models--org--two" / "snapshots" / "older" / "two-Q4_K_M.gguf").read_bytes() == b"g" * 400


def test_nothing_outside_of_the_repository_is_removed(environ: dict[str, str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"g")
    snapshot = tmp_path / "models--org--two" / "snapshots" / "abc"
    (snapshot / "two-Q6_K.gguf").symlink_to(mine)
    remove(HubName("org/two", "Q6_K"), environ)
    assert mine.exists() and not (snapshot / "two-Q6_K.gguf").exists()
