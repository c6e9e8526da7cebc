"""The lock beside a store's file: there while the store is one server's, and not left behind by one that is refused."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import pytest

from tests.server.stored import full_disk
from unicorn_async.errors import ConfigError
from unicorn_async.server.disk_store import DiskStore
from unicorn_async.server.store_lock import lock_store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("has_lock", [False, True])
def test_a_store_that_is_refused_leaves_no_lock_that_was_not_there(tmp_path: Path, has_lock: bool) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes").write_bytes(b"no database" * 100)
    if has_lock:
        for name in ("folder", "notes"):
            (tmp_path / f"{name}.lock").touch()
    before = sorted(os.listdir(tmp_path))
    for name in ("folder", "notes"):
        with pytest.raises(ConfigError, match=rf"{name}: responses can't be kept there"):
            DiskStore(tmp_path / name, 1)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_full_disk_has_no_empty_lock_left_on_it(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(ConfigError, match=r"a\.db: responses can't be kept there: File too large"):
        DiskStore(tmp_path / "a.db", 1)
    assert os.listdir(tmp_path) == []


def test_a_lock_that_a_refused_server_takes_away_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock, num_calls = tmp_path / "a.db.lock", fcntl.flock, 0

    def flock_late(descriptor: int, operation: int) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    descriptor, is_made = lock_store(tmp_path / "a.db")
    assert is_made and os.path.samestat(path.stat(), os.fstat(descriptor))
    assert path.read_text() == str(os.getpid())
    os.close(descriptor)
