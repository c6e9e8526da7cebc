"""Where the user's folders are."""

from __future__ import annotations

from pathlib import Path

import pytest

from unicorn_async.engine.user_folders import cache_directory
from unicorn_async.npu.manifest import build_dir


@pytest.mark.parametrize("value", ["", "cache", "./cache", "../cache", "~/cache"])
def test_a_relative_folder_in_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("XDG_DATA_HOME", value)
    monkeypatch.delenv("UNICORN_NPU_BUILD", raising=False)
    assert cache_directory() == Path.home() / ".cache" / "unicorn_async"
    assert build_dir() == Path.home() / ".local" / "share" / "unicorn" / "npu"


def test_an_absolute_folder_in_the_environment_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "unicorn_async"
