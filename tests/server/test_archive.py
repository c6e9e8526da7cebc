"""Responses on their way to a disk that is full, slow or silent: no answer waits for it, what is not kept is told."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import TYPE_CHECKING
from unittest.mock import ANY

import httpx
import pytest

from tests.server.conftest import serving
from tests.server.stored import entry, full_disk
from unicorn_async.errors import ConfigError
from unicorn_async.server import ServerOptions
from unicorn_async.server import archive as archive_module
from unicorn_async.server.archive import Archive
from unicorn_async.server.disk_store import DiskStore
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.store import ResponseStore, StoredResponse

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.fake_engine import FakeEngine


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
