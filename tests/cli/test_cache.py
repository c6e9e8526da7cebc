"""`unicorn cache` on a folder of entries."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.cache.cache_files import write_checkpoint, write_entry
from unicorn_async.cache.entry import ENTRY_FILE, TENSORS_FILE
from unicorn_async.cache.folder import CacheFolder
from unicorn_async.cli.main import main
from unicorn_async.engine.user_folders import kept_blocks_directory, kept_tokenizers
from unicorn_async.kv_store.disk_folder import DiskFolder
from unicorn_async.scheduler.kept_blocks import BlockName

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [f"{number:032x}" for number in range(1, 4)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CacheFolder:
    """Three entries; the second was used last."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = CacheFolder(tmp_path / "unicorn_async" / "weights")
    checkpoint = write_checkpoint(tmp_path / "model")
    for moment, key in enumerate(KEYS):
        write_entry(folder, checkpoint, key=key)
        os.utime(folder.folder_of(key) / ENTRY_FILE, (1000 + moment, 1000 + moment))
    folder.used(KEYS[1])
    return folder


def keys_in(folder: CacheFolder) -> set[str]:
    return {stored.key for stored in folder.entries()}


def test_path_prints_the_folder(folder: CacheFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "path"]) == 0
    assert capsys.readouterr().out == f"{folder.path}\n"


def test_list_shows_what_there_is(folder: CacheFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    os.truncate(folder.folder_of(KEYS[2]) / TENSORS_FILE, 10)
    assert main(["cache", "list"]) == 0
    head, first, *others, last = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["entry", "model", "scheme", "size"]
    assert first.split()[:3] == [KEYS[1][:12], "small", "int8"]
    assert first.endswith(str(tmp_path / "model"))
    assert "damaged: " in others[0]
    assert last.endswith("in all")
    assert main(["cache", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["entry"] for one in found] == [KEYS[1], KEYS[2], KEYS[0]]
    assert [one["usable"] for one in found] == [True, False, True]
    assert found[0]["source"] == str(tmp_path / "model")


def test_an_empty_cache_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["cache", "list"]) == main(["cache", "verify"]) == main(["cache", "prune", "--all"]) == 0
    assert "no entries" in capsys.readouterr().out


def test_names_from_files_do_not_reach_the_terminal_as_they_are(
    folder: CacheFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder.folder_of(KEYS[0]) / ENTRY_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model": "a\x1b[2Jb"}))
    assert main(["cache", "list"]) == 0
    assert "a?[2Jb" in capsys.readouterr().out


def test_prune_removes_what_is_of_no_use(folder: CacheFolder, capsys: pytest.CaptureFixture[str]) -> None:
    os.truncate(folder.folder_of(KEYS[0]) / TENSORS_FILE, 10)
    assert main(["cache", "prune"]) == 0
    assert keys_in(folder) == {KEYS[1], KEYS[2]}
    assert "removed 1 of 3 entries" in capsys.readouterr().out


def test_prune_to_a_size_keeps_what_was_used_last(folder: CacheFolder) -> None:
    assert main(["cache", "prune", "--to", "40K"]) == 0
    assert keys_in(folder) == {KEYS[1]}


def test_prune_all_leaves_nothing(folder: CacheFolder) -> None:
    assert main(["cache", "prune", "--all"]) == 0
    assert keys_in(folder) == set()


def test_kept_tokenizers_are_shown_and_go_with_all(folder: CacheFolder, capsys: pytest.CaptureFixture[str]) -> None:
    kept = kept_tokenizers()
    kept.path.mkdir()
    (kept.path / "one.tokenizer").write_bytes(bytes(2000))
    assert main(["cache", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "and 1 tokenizers, 2.0 kB"
    assert main(["cache", "prune"]) == 0
    assert len(kept.files()) == 1
    assert main(["cache", "prune", "--all"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "removed 1 tokenizers"
    assert kept.files() == []


def test_verify_ends_with_a_status(folder: CacheFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "verify"]) == 0
    assert capsys.readouterr().out.count("2 sources of the right size and time, hashed for the first time") == 3
    assert main(["cache", "verify"]) == 0
    assert capsys.readouterr().out.count("as they were made, sources as they were when first verified") == 3
    with (folder.folder_of(KEYS[2]) / TENSORS_FILE).open("r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    assert main(["cache", "verify", KEYS[1]]) == 0
    assert main(["cache", "verify", "small"]) == 1
    assert f"{KEYS[2][:12]} small: " in capsys.readouterr().err


def test_verify_wants_an_entry_that_is_there(folder: CacheFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "verify", "ff"]) == 1
    assert "no entry 'ff'" in capsys.readouterr().err


def test_blocks_of_kv_caches_are_shown_and_go_with_all(folder: CacheFolder, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = DiskFolder(kept_blocks_directory(), "0" * 32, (100,))
    assert blocks.open() == {}
    blocks.write(BlockName(0, bytes(16)), memoryview(bytes(100)))
    main(["cache", "list"])
    assert "KV" not in capsys.readouterr().out  # a server has them open
    blocks.close()
    main(["cache", "list"])
    assert capsys.readouterr().out.splitlines()[-1] == "and 1 blocks of KV caches, 164 B"
    assert main(["cache", "prune", "--all"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "removed 1 blocks of KV caches, 164 B"
    assert blocks.open() == {}
    blocks.close()
