"""What is deleted while it waits to be sent to the disk again does not come back."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import TYPE_CHECKING

import pytest

from tests.server.stored import entry
from unicorn_async.server import ServerOptions
from unicorn_async.server.archive import Archive
from unicorn_async.server.disk_store import DiskStore
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.store import ResponseStore

if TYPE_CHECKING:
    from pathlib import Path

    from unicorn_async.server.store import StoredResponse


async def half_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """An archive whose disk has the beginning of the answer `a`, and takes longer ones that are called so no more."""
    put = DiskStore._put

    def put_beginnings(disk: DiskStore, one: StoredResponse) -> None:
        if one.body.endswith(" "):
            raise sqlite3.OperationalError("database or disk is full")
        put(disk, one)

    archive = Archive(ResponseStore(10, 1000), ServerOptions(store_file=folder / "a.db"))
    with monkeypatch.context() as patch:
        patch.setattr(DiskStore, "_put", put_beginnings)
        archive.keep(entry("a"), is_begun=True)
        archive.keep(entry("a", 1))
        await archive.written()
    return archive


async def kept(folder: Path) -> list[StoredResponse | None]:
    store = DiskStore(folder / "a.db", 10)
    found = [await store.get(name) for name in "ab"]
    await store.close(20)
    return found


async def test_an_answer_that_is_deleted_while_the_disk_recovers_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = await half_kept(tmp_path, monkeypatch)
    archive.keep(entry("b"))  # behind which the other one would be sent
    await archive.remove("a")
    await archive.written()
    await archive.close()
    assert await kept(tmp_path) == [None, entry("b")]


async def test_an_answer_whose_deletion_the_end_does_not_wait_for_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, remove, goes_on = await half_kept(tmp_path, monkeypatch), DiskStore._remove, threading.Event()

    def remove_later(disk: DiskStore, response_id: str) -> None:
        goes_on.wait(600)
        remove(disk, response_id)

    monkeypatch.setattr(DiskStore, "_remove", remove_later)
    deleting = asyncio.create_task(archive.remove("a"))
    await asyncio.sleep(0)
    archive.end()
    with pytest.raises(ApiError, match="the server ends"):
        await deleting
    goes_on.set()
    await archive.close()
    assert await kept(tmp_path) == [None, None]


async def test_an_answer_that_the_disk_does_not_delete_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(disk: DiskStore, response_id: str) -> None:
        raise sqlite3.OperationalError("database is locked")

    archive = await half_kept(tmp_path, monkeypatch)
    monkeypatch.setattr(DiskStore, "_remove", fail)
    with pytest.raises(ApiError, match="can't be removed"):
        await archive.remove("a")
    await archive.close()
    assert await kept(tmp_path) == [entry("a", 1), None]


async def test_an_answer_that_is_deleted_while_its_end_is_written_is_not_there_where_its_beginning_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, goes_on = DiskStore._put, threading.Event()

    def put_ends(disk: DiskStore, one: StoredResponse) -> None:
        if not one.body.endswith(" "):
            raise sqlite3.OperationalError("database or disk is full")
        goes_on.wait(600)
        put(disk, one)

    monkeypatch.setattr(DiskStore, "_put", put_ends)
    archive = Archive(ResponseStore(10, 1000), ServerOptions(store_file=tmp_path / "a.db"))
    archive.keep(entry("a"), is_begun=True)
    await archive.written()
    archive.keep(entry("a", 1))
    deleting = asyncio.create_task(archive.remove("a"))
    await asyncio.sleep(0)
    goes_on.set()
    await deleting
    await archive.close()
    assert await kept(tmp_path) == [None, None]
