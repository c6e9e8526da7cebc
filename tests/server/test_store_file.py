"""The file of stored responses: whose it is, and what becomes of one that is damaged, deleted, replaced or moved."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import ANY

import httpx
import pytest

from tests.server.conftest import serving
from tests.server.stored import entry
from unicorn_async.errors import ConfigError
from unicorn_async.server import ServerOptions, serve
from unicorn_async.server.archive import Archive, ArchiveState
from unicorn_async.server.disk_store import DiskStore
from unicorn_async.server.store import ResponseStore

if TYPE_CHECKING:
    from tests.server.fake_engine import FakeEngine


async def test_a_file_that_is_no_such_store_is_named(tmp_path: Path, engine: FakeEngine) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be looked at " * 20)
    with pytest.raises(ConfigError, match=r"notes.txt: responses can't be kept there: file is not a database"):
        await serve(engine, port=0, options=ServerOptions(store_file=path))
    with pytest.raises(ConfigError, match="No such file"):
        DiskStore(tmp_path / "nowhere" / "a.db", 1)
    newer = tmp_path / "newer.db"
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(ConfigError, match="version 9, expected 2"):
        DiskStore(newer, 1)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("CREATE TABLE songs (name TEXT)", "a database of another program"),
        ("CREATE TABLE responses (name TEXT); PRAGMA user_version = 1", "a database of another program"),
        ("CREATE TABLE responses (name TEXT); PRAGMA user_version = 2", "a database of another program"),
        ("PRAGMA user_version = 1", "a database of another program"),
    ],
)
def test_another_programs_database_is_left_alone(tmp_path: Path, script: str, message: str) -> None:
    path = tmp_path / "songs.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=rf"songs\.db: {message}"):
        DiskStore(path, 1)
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_written_is_named() -> None:
    with pytest.raises(ConfigError, match=r"/sys/a\.db: responses can't be kept there: (Permission|Read-only)"):
        DiskStore(Path("/sys/a.db"), 1)


async def test_a_store_that_is_refused_leaves_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(b"no database" * 100)
    for _ in range(3):
        with pytest.raises(ConfigError):
            DiskStore(path, 1)
    assert open_below(tmp_path) == []


def open_below(folder: Path) -> list[str]:
    """Return which files of a folder are open; other tests' threads may open and close others meanwhile."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in found if Path(name).is_relative_to(folder)]


async def test_a_file_that_is_damaged_amid_its_use_fails_by_name_and_ends_no_answer(
    tmp_path: Path, engine: FakeEngine
) -> None:
    path = tmp_path / "a.db"
    options = ServerOptions(store_file=path, max_stored=1)
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        first = (await client.post("/v1/responses", json={"input": "Hi"})).json()["id"]
        assert (await client.post("/v1/responses", json={"input": "Hi"})).status_code == 200
        with contextlib.closing(sqlite3.connect(path, timeout=120)) as connection:
            async with asyncio.timeout(120):  # answers are whole before the disk has them
                while connection.execute("SELECT count(*) FROM responses").fetchone() != (2,):
                    assert (await client.get("/ready")).status_code == 200
            with connection:
                connection.execute("UPDATE responses SET messages = '[[1, 2'")
        for failed in (
            await client.get(f"/v1/responses/{first}"),
            await client.post("/v1/responses", json={"input": "More", "previous_response_id": first}),
        ):
            assert (failed.status_code, failed.json()["error"]["code"]) == (503, "store_failed")
        assert (await client.post("/v1/responses", json={"input": "Hi"})).status_code == 200


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_file_that_is_deleted_or_replaced_is_told_of_and_later_responses_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_replaced: bool
) -> None:
    path = tmp_path / "a.db"
    if is_replaced:
        other = DiskStore(tmp_path / "b.db", 10)
        await other.put(entry("other"))
        await other.close(20)
    archive = Archive(ResponseStore(10, 10_000), ServerOptions(store_file=path))
    archive.keep(entry("first"))
    await archive.recall("first")  # behind its writing
    if is_replaced:
        (tmp_path / "b.db").rename(path)
    else:
        path.unlink()
    archive.keep(entry("later"))
    await archive.recall("later")
    assert archive.state == ArchiveState(on_disk=True, error=None, num_unkept=0, num_files_lost=1)
    assert "was deleted or replaced while it was in use" in caplog.text
    await archive.close()
    store = DiskStore(path, 10)
    found = [await store.get(name) for name in ("first", "later", "other")]
    assert found == [None, entry("later"), entry("other") if is_replaced else None]
    await store.close(20)


@pytest.mark.parametrize("is_folder_gone", [False, True])
async def test_a_store_comes_back_when_its_place_can_be_used_again(
    tmp_path: Path, engine: FakeEngine, caplog: pytest.LogCaptureFixture, is_folder_gone: bool
) -> None:
    folder = tmp_path / "kept"
    path = folder / "a.db"

    def spoil() -> None:
        shutil.rmtree(folder)
        if not is_folder_gone:
            path.mkdir(parents=True)

    def mend() -> None:
        if not is_folder_gone:
            path.rmdir()
        folder.mkdir(exist_ok=True)

    folder.mkdir()
    async with (
        serving(engine, ServerOptions(store_file=path)) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        spoil()
        for _ in range(2):
            unkept = (await client.post("/v1/responses", json={"input": "Hi"})).json()["id"]
            failed = await client.get("/v1/responses/resp_unknown")  # behind the writing
            assert (failed.status_code, failed.json()["error"]["code"]) == (503, "store_failed")
            assert (await client.get(f"/v1/responses/{unkept}")).status_code == 200
            assert (await client.delete(f"/v1/responses/{unkept}")).status_code == 200
            assert (await client.get(f"/v1/responses/{unkept}")).status_code == 404
        told = (await client.get("/health")).json()["store"]
        assert told == {"on_disk": True, "error": ANY, "unkept": 2, "files_lost": 1}
        assert "can't be made again" in told["error"] and str(tmp_path) not in told["error"]
        mend()
        assert (await client.get("/v1/responses/resp_unknown")).status_code == 404
        kept = (await client.post("/v1/responses", json={"input": "Hi"})).json()["id"]
        assert (await client.get("/v1/responses/resp_unknown")).status_code == 404
        told = (await client.get("/health")).json()["store"]
        assert told == {"on_disk": True, "error": None, "unkept": 2, "files_lost": 1}
        with pytest.raises(ConfigError, match="keeps its own there"):
            DiskStore(path, 10)
    assert f"{path} is open again" in caplog.text and "kept on disk again; 2 were not" in caplog.text
    store = DiskStore(path, 10)
    assert await store.get(kept) is not None
    await store.close(20)


async def test_a_place_that_another_server_has_taken_meanwhile_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = DiskStore(path, 10)
    for name in os.listdir(tmp_path):
        os.remove(tmp_path / name)
    other = DiskStore(path, 10)
    with pytest.raises(sqlite3.OperationalError, match="can't be made again"):
        await store.put(entry("a"))
    await other.put(entry("b"))
    await other.close(20)
    await store.put(entry("c"))
    assert [await store.get(name) for name in "abc"] == [None, entry("b"), entry("c")]
    await store.close(20)


async def test_a_file_is_one_servers(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "a.db", 10)
    with pytest.raises(ConfigError, match=rf"a\.db: .* process {os.getpid()} keeps"):
        DiskStore(tmp_path / "a.db", 10)
    await store.close(20)
    await DiskStore(tmp_path / "a.db", 10).close(20)


async def test_a_file_stays_one_servers_where_the_lock_beside_it_is_deleted(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "a.db", 10)
    (tmp_path / "a.db.lock").unlink()
    with pytest.raises(ConfigError, match=r"a\.db: .* another process keeps its own there"):
        DiskStore(tmp_path / "a.db", 10)
    await store.put(entry("a"))
    await store.close(20)
    await DiskStore(tmp_path / "a.db", 10).close(20)


async def test_a_store_that_is_moved_away_and_back_has_lost_what_came_between(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    store = DiskStore(here / "a.db", 10)
    await store.put(entry("before"))
    for name in ("a.db-wal", "a.db"):
        (here / name).rename(there / name)
    await store.put(entry("between"))
    assert store.num_lost == 1
    for name in ("a.db-wal", "a.db"):
        (there / name).rename(here / name)
    await store.put(entry("behind"))
    assert store.num_lost == 2
    assert [await store.get(name) for name in ("before", "between")] == [entry("before"), None]
    assert await store.get("behind") == entry("behind")
    await store.close(20)
