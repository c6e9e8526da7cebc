"""Responses on disk: there after a restart, whole or not at all after a kill."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.conftest import serving
from unicorn_async.errors import ConfigError
from unicorn_async.server import ServerOptions, serve
from unicorn_async.server.disk_store import DiskStore
from unicorn_async.server.store import StoredResponse
from unicorn_async.tokenizer import ChatMessage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.fake_engine import FakeEngine

SAID = (ChatMessage("user", "Hi ä"), ChatMessage("assistant", "Hello"))


def entry(name: str, size: int = 0) -> StoredResponse:
    return StoredResponse(name, '{"id": "' + name + '"}' + " " * size, SAID, 1)


async def test_responses_are_there_after_a_restart(tmp_path: Path, engine: FakeEngine) -> None:
    options = ServerOptions(store_file=tmp_path / "responses.db", max_stored=1)
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        first = (await client.post("/v1/responses", json={"input": "Hi"})).json()
        gone = (await client.post("/v1/responses", json={"input": "Hi"})).json()["id"]
        unkept = (await client.post("/v1/responses", json={"input": "Hi", "store": False})).json()["id"]
        assert (await client.delete(f"/v1/responses/{gone}")).json()["deleted"] is True
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        assert (await client.get(f"/v1/responses/{first['id']}")).json() == first
        more = {"input": "More", "previous_response_id": first["id"]}
        assert (await client.post("/v1/responses", json=more)).status_code == 200
        items = (await client.get(f"/v1/responses/{first['id']}/input_items")).json()
        assert [item["content"][0]["text"] for item in items["data"]] == ["Hi"]
        for name in (gone, unkept):
            assert (await client.get(f"/v1/responses/{name}")).status_code == 404
        assert (await client.post(f"/v1/responses/{first['id']}/cancel")).json() == first
        assert (await client.delete(f"/v1/responses/{first['id']}")).status_code == 200
        assert (await client.get(f"/v1/responses/{first['id']}")).status_code == 404
    said = [message.content for message in engine.fake_tokenizer.conversations[-1]]
    assert said == ["Hi", "Hello there, friend", "More"]


async def test_the_oldest_go_where_there_are_too_many(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "a.db", 2)
    for name in ("a", "b", "b", "c"):
        await store.put(entry(name))
    assert [await store.get(name) for name in ("a", "b", "c")] == [None, entry("b"), entry("c")]
    await store.close()
    assert (tmp_path / "a.db").stat().st_mode & 0o777 == 0o600


WRITER = """
import asyncio, sys
from pathlib import Path
from unicorn_async.server.disk_store import DiskStore
from tests.server.test_disk_store import entry

async def write():
    store = DiskStore(Path(sys.argv[1]), 1000)
    for number in range(1000):
        await store.put(entry(f"resp_{number}", 50_000))
        print(number, flush=True)

asyncio.run(write())
"""


def written_until_killed(path: Path) -> list[int]:
    """Return the numbers of the responses whose writing a process had told of before it was killed."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        written = [int(process.stdout.readline()) for _ in range(5)]
        process.send_signal(signal.SIGKILL)
        return [*written, *map(int, process.stdout)]


async def test_after_a_kill_each_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    written = written_until_killed(path)
    store = DiskStore(path, 1000)
    found = [await store.get(f"resp_{number}") for number in range(written[-1] + 3)]
    assert found[: len(written)] == [entry(f"resp_{number}", 50_000) for number in written]
    assert all(one is None or one == entry(one.id, 50_000) for one in found)
    await store.close()


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
    with pytest.raises(ConfigError, match="version 9, expected 1"):
        DiskStore(newer, 1)


async def test_a_disk_that_takes_nothing_ends_no_answer(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: DiskStore, entry: StoredResponse) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(DiskStore, "_put", refuse)
    options = ServerOptions(store_file=tmp_path / "a.db")
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        first = (await client.post("/v1/responses", json={"input": "Hi"})).json()
        assert (await client.get(f"/v1/responses/{first['id']}")).json() == first
    assert "is kept in memory alone: database or disk is full" in caplog.text
