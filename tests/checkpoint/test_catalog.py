"""What a client may name, and what it may not reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.test_location import add_model
from unicorn_async.checkpoint.catalog import CatalogEntry, ModelCatalog, given_entry
from unicorn_async.errors import CheckpointError, ConfigError, ModelNotFoundError
from unicorn_async.resources import demo_model_dir

if TYPE_CHECKING:
    from pathlib import Path


def write(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_bytes(b"")
    return directory


def write_model(directory: Path) -> Path:
    return write(directory, "config.json", "model.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of models, beside one with a model that is nobody's business."""
    root = tmp_path / "models"
    write_model(root / "plain")
    write_model(root / "org" / "nested")
    write(root / "gguf", "one-q4.gguf", "two-q8.gguf", "mmproj-two.gguf")
    write(root / "split", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf")
    write(root / "broken", "big-00002-of-00002.gguf")
    write(root / "adapter", "adapter_config.json", "adapter_model.safetensors")
    write(root, "loose.gguf", "notes.txt")
    write_model(tmp_path / "secret")
    write(tmp_path / "secret", "secret.gguf", "adapter_config.json")
    return root


def catalog(*folders: Path, hub: Path | None = None, given: CatalogEntry | None = None) -> ModelCatalog:
    return ModelCatalog(given, folders, {"HF_HUB_CACHE": str(hub or "/nonexistent")})


def test_models_below_a_folder_are_listed_by_their_relative_names(folder: Path) -> None:
    names = [entry.name for entry in catalog(folder).entries()]
    assert names == [
        "unicorn-demo",
        "loose.gguf",
        "gguf/one-q4.gguf",
        "gguf/two-q8.gguf",
        "org/nested",
        "plain",
        "split/big-00001-of-00002.gguf",
    ]


def test_every_listed_name_is_found_where_it_was_listed(folder: Path, tmp_path: Path) -> None:
    write_model(add_model(tmp_path / "hub", "org/cached", "abc", main=True))
    write(add_model(tmp_path / "hub", "org/one-GGUF", "abc", main=True), "config.json", "one-Q8_0.gguf")
    write(add_model(tmp_path / "hub", "org/two-GGUF", "abc", main=True), "two-Q4_K_M.gguf", "two-UD-Q4_K_M.gguf")
    write(add_model(tmp_path / "hub", "org/alike-GGUF", "abc", main=True), "a-Q8_0.gguf", "b-Q8_0.gguf")
    found = catalog(folder, hub=tmp_path / "hub")
    entries = found.entries()
    cached = [entry.name for entry in entries if entry.name.startswith("org/") and entry.name != "org/nested"]
    assert cached == [
        "org/alike-GGUF:a-Q8_0",
        "org/alike-GGUF:b-Q8_0",
        "org/cached",
        "org/one-GGUF",
        "org/two-GGUF:Q4_K_M",
        "org/two-GGUF:UD-Q4_K_M",
    ]
    for entry in entries:
        assert found.find(entry.name) == entry


def test_the_given_model_comes_first_and_once_wherever_it_lies(folder: Path) -> None:
    given = given_entry(folder / "plain", "mine")
    found = catalog(folder, given=given)
    assert found.entries()[0] == given
    assert found.find("mine") == given
    assert "plain" not in [entry.name for entry in found.entries()]
    assert given_entry(folder / "plain").name == "plain"


def test_the_bundled_model_has_two_names() -> None:
    assert catalog().find("demo") == catalog().find("unicorn-demo") == CatalogEntry("unicorn-demo", "demo")
    assert demo_model_dir().is_dir()


def test_a_part_of_a_split_model_means_the_whole(folder: Path) -> None:
    found = catalog(folder)
    first = found.find("split/big-00001-of-00002.gguf")
    assert found.find("split/big-00002-of-00002.gguf") == first
    assert found.find("split") == first
    with pytest.raises(CheckpointError, match="missing"):
        found.find("broken")


def test_a_folder_of_several_gguf_models_names_them(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"one-q4\.gguf, two-q8\.gguf"):
        catalog(folder).find("gguf")


ESCAPES = [
    "../secret",
    "plain/../../secret",
    "./plain",
    "plain/",
    "/etc",
    "",
    ".",
    "..",
    "plain//x",
    "~",
    "~root",
    "plain\\..",
    "pla\0in",
    "x" * 5000,
    "org/" * 200 + "x",
    "\ud800",
    "notes.txt",
    "plain/config.json",
    "link",
    "link/secret.gguf",
    "link.gguf",
    "loop",
]


@pytest.mark.parametrize("name", ESCAPES)
def test_no_name_leads_out_of_the_folder(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "link.gguf").symlink_to(tmp_path / "secret" / "secret.gguf")
    (folder / "loop").symlink_to(folder / "loop")
    found = catalog(folder)
    with pytest.raises(ModelNotFoundError) as caught:
        found.find(name)
    assert str(tmp_path) not in str(caught.value)
    with pytest.raises(ConfigError, match="not among those") as refused:
        found.find_adapter(name)
    assert str(tmp_path) not in str(refused.value)


def test_the_absolute_path_of_a_model_is_no_name(folder: Path, tmp_path: Path) -> None:
    for path in (folder / "plain", tmp_path / "secret"):
        with pytest.raises(ModelNotFoundError):
            catalog(folder).find(str(path))


def test_a_relative_path_from_the_working_directory_is_no_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError):
        catalog(folder).find("secret")
    with pytest.raises(ModelNotFoundError):
        catalog().find("models/plain")


def test_a_file_in_a_models_folder_that_is_a_link_out_of_it_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "plain" / "model-2.safetensors").symlink_to(tmp_path / "secret" / "model.safetensors")
    with pytest.raises(ConfigError, match="leads out of the folder"):
        catalog(folder).find("plain")


def test_what_links_lead_to_is_not_listed_unless_it_lies_inside_the_folder(folder: Path, tmp_path: Path) -> None:
    before = catalog(folder).entries()
    secret = tmp_path / "secret"
    (folder / "link.gguf").symlink_to(secret / "secret.gguf")
    (folder / "nowhere.gguf").symlink_to(folder / "gone.gguf")
    (folder / "loop.gguf").symlink_to(folder / "loop.gguf")
    (folder / "linked").mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / "linked" / name).symlink_to(secret / name)
    write(folder / "parts", "big-00001-of-00002.gguf")
    (folder / "parts" / "big-00002-of-00002.gguf").symlink_to(secret / "secret.gguf")
    (folder / "inside").mkdir()
    (folder / "inside" / "alias.gguf").symlink_to(write(folder / ".files", "x.gguf") / "x.gguf")
    entries = catalog(folder).entries()
    assert {entry.name for entry in entries} - {entry.name for entry in before} == {"inside/alias.gguf"}
    for entry in entries:
        assert catalog(folder).find(entry.name)


def test_a_model_with_a_file_that_links_to_itself_is_left_to_who_opens_it(folder: Path) -> None:
    loop = folder / "plain" / "model-2.safetensors"
    loop.symlink_to(loop)
    assert catalog(folder).find("plain") in catalog(folder).entries()


def test_links_inside_the_folder_are_followed(folder: Path) -> None:
    (folder / "alias").symlink_to(folder / "plain")
    assert catalog(folder).find("alias").location == folder / "plain"


def test_adapters_are_found_below_folders_and_in_the_hub(folder: Path, tmp_path: Path) -> None:
    write(add_model(tmp_path / "hub", "org/lora", "abc", main=True), "adapter_config.json")
    found = catalog(folder, hub=tmp_path / "hub")
    assert found.find_adapter("adapter") == folder / "adapter"
    assert found.find_adapter("org/lora").name == "abc"
    with pytest.raises(ConfigError, match="not among those"):
        found.find_adapter("plain")


def test_listed_adapters_are_those_that_are_found(folder: Path, tmp_path: Path) -> None:
    write(folder / "loras" / "a", "adapter_config.json")
    write(tmp_path / "outside", "adapter_config.json")
    (folder / "loras" / "link").symlink_to(tmp_path / "outside")
    found = catalog(folder, hub=tmp_path / "hub")
    names = found.adapters()
    assert "loras/a" in names
    assert "loras/link" not in names
    for name in names:
        assert (found.find_adapter(name) / "adapter_config.json").is_file()


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        catalog(tmp_path / "nowhere")


@settings(max_examples=200, deadline=None)
@given(name=st.text(max_size=40) | st.lists(st.sampled_from(["..", ".", "", "a", "~", "plain"])).map("/".join))
def test_any_name_is_found_inside_or_refused(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.getbasetemp() / "any"
    write_model(root / "plain")
    try:
        entry = catalog(root).find(name)
    except ConfigError:
        return
    assert entry.name in ("unicorn-demo", "plain")
