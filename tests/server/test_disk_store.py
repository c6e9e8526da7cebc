"""Responses on disk: there after a restart, whole or not at all after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.conftest import serving
from tests.server.stored import SAID, entry
from unicorn_async.server import ServerOptions, disk_store
from unicorn_async.server.disk_store import DiskStore
from unicorn_async.server.keys import ApiKey
from unicorn_async.server.store import StoredResponse
from unicorn_async.tokenizer import ChatMessage, ToolCall

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.fake_engine import FakeEngine


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


async def test_calls_and_the_thoughts_before_them_are_kept(tmp_path: Path) -> None:
    call = (ToolCall("call_1", "add", "{}"),)
    called = ChatMessage("assistant", "", call, thoughts="Why ä?"), ChatMessage("tool", "3", tool_call_id="call_1")
    kept = replace(entry("a"), messages=(*SAID, *called, ChatMessage("assistant", "", call)))
    store = DiskStore(tmp_path / "a.db", 2)
    await store.put(kept)
    assert await store.get("a") == kept
    await store.close(20)


async def test_the_oldest_go_where_there_are_too_many(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "a.db", 2)
    for name in ("a", "b", "b", "c"):
        await store.put(entry(name))
    assert [await store.get(name) for name in ("a", "b", "c")] == [None, entry("b"), entry("c")]
    await store.close(20)
    assert (tmp_path / "a.db").stat().st_mode & 0o777 == 0o600


WRITER = """
import asyncio, sys
from pathlib import Path
from unicorn_async.server.disk_store import DiskStore
from tests.server.stored import entry

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
    await store.close(20)


def all_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def test_nothing_of_a_deleted_response_is_left_in_the_files(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "a.db", 10)
    secret = ChatMessage("user", "the word is hunter2")
    await store.put(StoredResponse("a", "{}", (secret,), 1))
    await store.put(entry("b"))
    assert b"hunter2" in all_bytes(tmp_path)
    await store.remove("a")
    assert b"hunter2" not in all_bytes(tmp_path)
    assert await store.get("b") == entry("b")
    await store.close(20)


async def test_a_program_that_reads_holds_up_no_deletion_and_the_text_goes_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(tmp_path / "a.db", 10)
    await store.put(StoredResponse("a", "{}", (ChatMessage("user", "the word is hunter2"),), 1))
    monkeypatch.setattr(disk_store, "LOCK_WAIT_S", 600.0)
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT id FROM responses").fetchall()
        async with asyncio.timeout(60):
            await store.remove("a")
        assert await store.get("a") is None and b"hunter2" in all_bytes(tmp_path)
    await store.put(entry("b"))
    assert b"hunter2" not in all_bytes(tmp_path)
    await store.close(20)


async def test_a_lock_of_another_program_is_waited_for_once_and_by_nobody_who_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(tmp_path / "a.db", 10)
    await store.put(entry("a"))
    monkeypatch.setattr(disk_store, "LOCK_WAIT_S", 0.01)
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        refused = store.put(entry("b"))
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await refused
        monkeypatch.setattr(disk_store, "LOCK_WAIT_S", 600.0)
        async with asyncio.timeout(60):
            more = [store.put(entry(name)) for name in "cde"]
            assert await store.get("a") == entry("a")
            assert len(await asyncio.gather(*more, return_exceptions=True)) == 3
    await store.put(entry("f"))
    assert [await store.get(name) for name in "cf"] == [None, entry("f")]
    await store.close(20)


async def test_responses_are_one_keys_after_a_restart_too_and_those_of_older_files_are_every_keys(
    tmp_path: Path, engine: FakeEngine
) -> None:
    path = tmp_path / "a.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE responses (number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, body TEXT NOT NULL,"
            " messages TEXT NOT NULL, num_inputs INTEGER);"
            "INSERT INTO responses VALUES (1, 'resp_old', '{}', '[]', 0); PRAGMA user_version = 1"
        )
    keys = (ApiKey("anna", "a-key"), ApiKey("ci", "c-key"))
    anna, other = ({"authorization": f"Bearer {key.key}"} for key in keys)
    name = ""
    for shares in (False, False, True):
        options = ServerOptions(store_file=path, api_keys=keys, share_prefixes=shares)
        async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
            if not name:
                said = {"input": "Hi"}
                name = (await client.post("/v1/responses", json=said, headers=anna)).json()["id"]
                background = {"input": "Hi", "background": True, "stream": True}
                events = (await client.post("/v1/responses", json=background, headers=anna)).text
                ended = json.loads(events.split("data: ")[1].split("\n")[0])["response"]["id"]
                for path_of in (f"/v1/responses/{ended}", f"/v1/responses/{ended}?stream=true"):
                    assert (await client.get(path_of, headers=other)).status_code == 404
            url = f"/v1/responses/{name}"
            assert (await client.get(url, headers=anna)).status_code == 200
            assert (await client.get("/v1/responses/resp_old", headers=other)).status_code == 200
            assert (await client.get(url, headers=other)).status_code == 404
            assert (await client.get(f"{url}/input_items", headers=other)).status_code == 404
            more = {"input": "More", "previous_response_id": name}
            goes_on = await client.post("/v1/responses", json=more, headers=other)
            assert goes_on.status_code == 400
            assert (await client.post(f"{url}/cancel", headers=other)).status_code == 404
            assert (await client.delete(url, headers=other)).status_code == 404
