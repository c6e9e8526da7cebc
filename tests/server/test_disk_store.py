"""Responses on disk: there after a restart, whole or not at all after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import ANY

import httpx
import pytest

from tests.server.conftest import serving
from unicorn_async.errors import ConfigError
from unicorn_async.server import ServerOptions, disk_store, serve
from unicorn_async.server import archive as archive_module
from unicorn_async.server.archive import Archive, ArchiveState
from unicorn_async.server.disk_store import DiskStore
from unicorn_async.server.keys import ApiKey
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.store import ResponseStore, StoredResponse
from unicorn_async.tokenizer import ChatMessage, ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    await store.close(20)


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


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Have no file grow, as where no block is free."""
    earlier = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, earlier[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, earlier)


async def test_a_full_disk_ends_no_answer_and_is_told_of_until_it_takes_responses_again(
    tmp_path: Path, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> str:
        response_id: str = (await client.post("/v1/responses", json={"input": "Hi"})).json()["id"]
        return response_id

    async def is_told(error: str | None, unkept: int) -> None:
        """An answer's client has it before the disk does."""
        async with asyncio.timeout(120):
            while True:
                health = await client.get("/health")
                assert health.status_code == 200
                if health.json()["store"] == {"on_disk": True, "error": error, "unkept": unkept, "files_lost": 0}:
                    return

    options = ServerOptions(store_file=tmp_path / "a.db", max_stored=2)
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        kept = await ask()
        await client.delete(f"/v1/responses/{await ask()}")  # the disk has done what came before
        with full_disk():
            unkept = [await ask() for _ in range(2)]
            assert [(await client.get(f"/v1/responses/{name}")).status_code for name in unkept] == [200, 200]
            await is_told("disk I/O error", 2)
            assert "unicorn_store_failing 1\n" in (await client.get("/metrics")).text
            assert (await client.get(f"/v1/responses/{kept}")).status_code == 200
            failed = await client.delete(f"/v1/responses/{kept}")
            assert (failed.status_code, failed.json()["error"]["code"]) == (503, "store_failed")
            assert str(tmp_path) not in failed.text
        later = await ask()
        await is_told(None, 2)
        counted = (await client.get("/metrics")).text
        assert "unicorn_unkept_responses_total 2\n" in counted and "unicorn_store_failing 0\n" in counted
    assert caplog.text.count("is kept in memory alone: disk I/O error") == 1
    assert "kept on disk again; 2 were not" in caplog.text
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        found = [(await client.get(f"/v1/responses/{name}")).status_code for name in (kept, *unkept, later)]
        assert found == [200, 404, 404, 200]


async def test_places_are_given_back_before_a_slow_disk_has_what_was_answered(
    tmp_path: Path, engine: FakeEngine, slow_disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Archive.close

    async def close_slowly(archive: Archive) -> None:
        slow_disk.set()
        await close(archive)

    monkeypatch.setattr(Archive, "close", close_slowly)  # the server ends when all is written
    path = tmp_path / "a.db"
    options = ServerOptions(store_file=path, max_client_requests=2, max_client_connections=2, max_background=2)
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        answers = [await client.post("/v1/responses", json={"input": "Hi"}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        for name in (answers[0].json()["id"], answers[-1].json()["id"]):
            assert (await client.get(f"/v1/responses/{name}")).json()["status"] == "completed"
        for _ in range(3):
            background = {"input": "Hi", "background": True, "stream": True}
            assert "event: response.completed" in (await client.post("/v1/responses", json=background)).text
    store = DiskStore(path, 10)
    assert [await store.get(answer.json()["id"]) is not None for answer in answers] == [True, True, True]
    await store.close(20)


async def test_a_disk_that_hangs_is_left_at_the_end_with_its_file_and_what_it_has_not_taken_is_logged(
    tmp_path: Path, slow_disk: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(archive_module, "END_S", 0.01)
    monkeypatch.setattr(archive_module, "MAX_NAMES", 1)
    path, earlier = tmp_path / "a.db", threading.enumerate()
    archive = Archive(ResponseStore(10, 1000), ServerOptions(store_file=path))
    (thread,) = (one for one in threading.enumerate() if one not in earlier and one.name == "unicorn-store_0")
    monkeypatch.setattr(archive_module, "MAX_UNWRITTEN", 0)
    for name in ("a", "b"):
        archive.keep(entry(name))
    async with asyncio.timeout(120):
        waiting = asyncio.gather(archive.room(), archive.written())
        await asyncio.sleep(0)  # it begins
        assert not waiting.done()
        await archive.close()
        await waiting
    assert "unicorn-store_0 (writing): no answer within 0.01 s of the end" in caplog.text
    assert "2 responses are not on disk: a and 1 more" in caplog.text
    assert thread.daemon
    with pytest.raises(ConfigError, match="keeps its own there"):
        DiskStore(path, 10)
    slow_disk.set()
    await asyncio.to_thread(thread.join, 120)
    store = DiskStore(path, 10)
    assert [await store.get(name) for name in ("a", "b")] == [entry("a"), None]
    await store.close(20)


async def test_an_answer_that_the_end_cuts_short_waits_for_no_disk_that_hangs(
    tmp_path: Path, engine: FakeEngine, slow_disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "END_S", 0.01)
    monkeypatch.setattr(archive_module, "MAX_UNWRITTEN", 0)
    engine.hold[1] = asyncio.Event()
    async with asyncio.timeout(120), serving(engine, ServerOptions(store_file=tmp_path / "a.db")) as served:
        asked = {"input": "Hi", "background": True, "stream": True}
        async with (
            httpx.AsyncClient(base_url=served.url) as client,
            client.stream("POST", "/v1/responses", json=asked) as answer,
        ):
            await anext(answer.aiter_lines())
    slow_disk.set()


async def test_a_response_that_is_deleted_before_the_disk_has_it_does_not_come_back(
    tmp_path: Path, engine: FakeEngine, slow_disk: threading.Event
) -> None:
    options = ServerOptions(store_file=tmp_path / "a.db")
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        name = (await client.post("/v1/responses", json={"input": "Hi"})).json()["id"]
        deleting = asyncio.create_task(client.delete(f"/v1/responses/{name}"))
        await asyncio.sleep(0)
        slow_disk.set()
        assert (await deleting).status_code == 200
        assert (await client.get(f"/v1/responses/{name}")).status_code == 404


async def test_a_response_that_a_full_disk_refuses_twice_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(store: DiskStore, entry: StoredResponse) -> None:
        raise OSError("full")

    monkeypatch.setattr(DiskStore, "_put", refuse)
    archive = Archive(ResponseStore(10, 1000), ServerOptions(store_file=tmp_path / "a.db"))
    archive.keep(entry("a"), is_begun=True)
    archive.keep(entry("a"))
    await archive.written()
    assert archive.state.num_unkept == 1
    await archive.close()


async def test_who_makes_responses_faster_than_the_disk_takes_them_waits_for_it(
    tmp_path: Path, slow_disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "MAX_UNWRITTEN", 2)
    archive = Archive(ResponseStore(10, 1000), ServerOptions(store_file=tmp_path / "a.db"))
    for name in ("a", "b"):
        archive.keep(entry(name))
        await archive.room()
    archive.keep(entry("c"))
    waiting, gone = (asyncio.create_task(archive.room()) for _ in range(2))
    await asyncio.sleep(0)
    assert not waiting.done()
    gone.cancel()
    slow_disk.set()
    await waiting
    await archive.close()
    assert (await asyncio.gather(gone, return_exceptions=True), archive.state.num_unkept) == ([ANY], 0)
    archive.keep(entry("d"))  # of a client that was slower than the server's end
    assert archive.state.num_unkept == 1
    store = DiskStore(tmp_path / "a.db", 10)
    assert [await store.get(name) for name in "abcd"] == [*map(entry, "abc"), None]
    await store.close(20)


async def test_an_answer_of_which_the_disk_took_the_beginning_alone_is_sent_again_and_can_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(memory := ResponseStore(2, 1000), ServerOptions(store_file=tmp_path / "a.db"))
    put, is_full = DiskStore._put, threading.Event()

    def put_unless_full(disk: DiskStore, one: StoredResponse) -> None:
        if is_full.is_set():
            raise sqlite3.OperationalError("database or disk is full")
        put(disk, one)

    monkeypatch.setattr(DiskStore, "_put", put_unless_full)

    async def answer(name: str) -> None:
        is_full.clear()
        archive.keep(entry(name), is_begun=True)
        await archive.written()
        is_full.set()
        memory.put(entry(name, 1))
        archive.keep(entry(name, 1))
        await archive.written()

    for name in "abc":
        await answer(name)
    assert memory.get("a") is None
    await archive.recall("a")
    assert memory.get("a") == entry("a", 1)
    await archive.remove("b")
    assert archive.state.num_unkept == 3
    is_full.clear()
    archive.keep(entry("later"))
    await archive.written()
    await archive.written()  # what is sent again behind it
    await answer("d")
    is_full.clear()
    await archive.close()
    store = DiskStore(tmp_path / "a.db", 10)
    wanted = [entry("a", 1), None, entry("c", 1), entry("d", 1)]
    assert [await store.get(name) for name in "abcd"] == wanted
    await store.close(20)


async def test_no_more_answers_wait_to_be_sent_again_than_are_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, put = ResponseStore(2, 1000), DiskStore._put
    archive = Archive(memory, ServerOptions(store_file=tmp_path / "a.db", max_stored=2))

    def put_beginnings(disk: DiskStore, one: StoredResponse) -> None:
        if one.body.endswith(" "):
            raise sqlite3.OperationalError("database or disk is full")
        put(disk, one)

    monkeypatch.setattr(DiskStore, "_put", put_beginnings)
    for name in "abc":
        archive.keep(entry(name), is_begun=True)
        await archive.written()
        archive.keep(entry(name, 1))
        await archive.written()
    for name, size in (("a", 0), ("b", 1), ("c", 1)):
        await archive.recall(name)
        assert memory.get(name) == entry(name, size)
    await archive.remove("a")
    await archive.close()
    store = DiskStore(tmp_path / "a.db", 10)
    assert await store.get("a") is None
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


async def test_a_disk_that_does_not_answer_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(ResponseStore(10, 1000), ServerOptions(store_file=tmp_path / "a.db"))
    monkeypatch.setattr(archive_module, "DISK_TIMEOUT_S", 0.01)
    comes = threading.Event()
    monkeypatch.setattr(DiskStore, "_get", lambda *_: comes.wait(600) or None)
    for asked in (archive.recall("a"), archive.remove("a")):
        with pytest.raises(ApiError, match="fails") as caught:
            await asked
        assert caught.value.status == 503
    comes.set()
    await archive.close()


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
