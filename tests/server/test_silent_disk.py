"""A disk under the store that does not answer: who is told of it, who is refused, and who waits for it no longer."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import TYPE_CHECKING
from unittest.mock import ANY, Mock

import httpx
import pytest

from tests.server.conftest import serving
from tests.server.stored import entry
from tests.server.ws_client import connected
from unicorn_async.sampling_params import SamplingParams
from unicorn_async.server import ModelHost, ServerOptions
from unicorn_async.server import archive as archive_module
from unicorn_async.server.archive import Archive
from unicorn_async.server.disk_store import DiskStore
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import parse_object
from unicorn_async.server.protocol.responses_request import parse_responses_request
from unicorn_async.server.protocol.retrieval import Retrieval
from unicorn_async.server.service import Service
from unicorn_async.server.store import ResponseStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.fake_engine import FakeEngine
    from unicorn_async.server.store import StoredResponse


async def test_a_disk_that_is_silent_is_told_of_and_what_is_to_be_kept_is_refused_before_it_is_computed(
    tmp_path: Path, engine: FakeEngine, slow_disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "DISK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(archive_module, "MAX_UNWRITTEN", 1)
    options = ServerOptions(store_file=tmp_path / "a.db")
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:

        async def ask(**fields: object) -> httpx.Response:
            return await client.post("/v1/responses", json={"input": "Hi", **fields})

        async def store_error() -> str | None:
            found: str | None = (await client.get("/health")).json()["store"]["error"]
            return found

        assert await store_error() is None
        assert [(await ask()).status_code for _ in range(2)] == [200, 200]
        refused = await ask()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_failed")
        message = refused.json()["error"]["message"]
        assert message.startswith("the disk that responses are kept on takes no more now ("), message
        assert message.endswith("): ask again later, or with store false, which has the answer made and not kept")
        assert int(refused.headers["retry-after"]) > 0
        assert len(engine.calls) == 2
        async with asyncio.timeout(120):
            while "nothing came within" not in str(await store_error()):
                pass
        health = await client.get("/health")
        told = {"store": "responses can't be kept on disk: nothing came within 10 s"}
        assert (health.status_code, health.json()["error"], health.json()["outages"]) == (200, None, told)
        assert (await client.get("/ready")).status_code == 200, "what is not to be kept goes on"
        found = (await client.get("/metrics")).text
        assert 'unicorn_outage{part="store"} 1\n' in found
        assert "unicorn_store_failing 1\n" in found and "unicorn_well 1\n" in found
        unknown = await client.get("/v1/responses/resp_nothere")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (503, "store_failed")
        assert (await ask(store=False)).status_code == 200
        monkeypatch.setattr(archive_module, "DISK_TIMEOUT_S", 600.0)
        slow_disk.set()
        async with asyncio.timeout(120):
            while await store_error() is not None:
                pass
        assert (await client.get("/health")).json()["outages"] == {}
        assert 'unicorn_outage{part="store"} 0\n' in (await client.get("/metrics")).text
        assert (await ask()).status_code == 200


async def test_a_disk_that_keeps_a_reader_waiting_is_told_of_until_it_answers_again_without_a_further_request(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(archive_module, "DISK_TIMEOUT_S", 0.1)
    comes = threading.Event()
    monkeypatch.setattr(DiskStore, "_get", lambda *_: comes.wait(600) and None)
    options = ServerOptions(store_file=tmp_path / "a.db")
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:

        async def is_told(error: str | None) -> None:
            async with asyncio.timeout(120):
                while (await client.get("/health")).json()["store"]["error"] != error:
                    pass

        error = None
        while error is None:  # a thread that begins late leaves out what nobody waits for any more
            assert (await client.get("/v1/responses/resp_unknown")).status_code == 503
            error = (await client.get("/health")).json()["store"]["error"]
        failed = await client.get("/v1/responses/resp_unknown")
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "store_failed")
        assert error == "nothing came within 10 s"
        assert "unicorn_store_failing 1\n" in (await client.get("/metrics")).text
        comes.set()
        await is_told(None)
        monkeypatch.setattr(archive_module, "DISK_TIMEOUT_S", 600.0)
        assert "unicorn_store_failing 0\n" in (await client.get("/metrics")).text
        assert (await client.get("/v1/responses/resp_unknown")).status_code == 404
    assert caplog.text.count("the disk that responses are kept on: nothing came within") == 1
    assert caplog.text.count("the disk that responses are kept on answers again") == 1


async def test_a_disk_that_is_known_to_be_silent_is_asked_for_nothing_more_until_it_answers(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(archive_module, "DISK_TIMEOUT_S", 0.2)
    comes, asked = threading.Event(), list[str]()

    def hang(_: DiskStore, response_id: str) -> None:
        asked.append(response_id)
        comes.wait(600)

    monkeypatch.setattr(DiskStore, "_get", hang)
    options = ServerOptions(store_file=tmp_path / "a.db")
    async with (
        asyncio.timeout(120),
        serving(engine, options) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        while (await client.get("/health")).json()["store"]["error"] is None:
            assert (await client.get("/v1/responses/resp_first")).status_code == 503
        with monkeypatch.context() as unasked:
            unasked.setattr(DiskStore, "_begin", Mock(side_effect=AssertionError("it is asked")))
            for method, path, body in (
                ("GET", "/v1/responses/resp_a", None),
                ("DELETE", "/v1/responses/resp_b", None),
                ("POST", "/v1/responses", {"input": "Hi", "previous_response_id": "resp_c"}),
            ):
                refused = await client.request(method, path, json=body)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_failed")
                assert int(refused.headers["retry-after"]) > 0
        told = sorted({record.getMessage() for record in caplog.records if record.levelno == logging.ERROR})
        assert len(told) == 2 and "resp_first" in told[0] and "the disk that responses are kept on" in told[1]
        assert asked == ["resp_first"]
        comes.set()
        while (await client.get("/v1/responses/resp_last")).status_code == 503:
            pass
        assert asked[-1] == "resp_last"


async def test_who_comes_late_waits_for_a_disk_no_longer_than_until_it_is_known_to_be_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comes = threading.Event()
    monkeypatch.setattr(DiskStore, "_get", lambda *_: comes.wait(600) and None)
    archive = Archive(ResponseStore(10, 1000), ServerOptions(store_file=tmp_path / "a.db"))
    monkeypatch.setattr(archive_module, "DISK_TIMEOUT_S", 600.0)
    monkeypatch.setattr(DiskStore, "busy_s", 599.99)
    late = asyncio.create_task(archive.recall("a"))
    await asyncio.sleep(0)
    monkeypatch.setattr(DiskStore, "busy_s", 600.0)
    async with asyncio.timeout(120):  # a fifth of what it would wait by itself
        with pytest.raises(ApiError, match="can't be read"):
            await late
    comes.set()
    await archive.close()


async def test_a_websocket_is_told_that_the_disk_is_silent_and_goes_on_with_what_is_not_kept(
    tmp_path: Path, engine: FakeEngine, slow_disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "DISK_TIMEOUT_S", 0.01)
    monkeypatch.setattr(archive_module, "MAX_UNWRITTEN", 0)
    async with (
        asyncio.timeout(120),
        serving(engine, ServerOptions(store_file=tmp_path / "a.db")) as served,
        connected(served.ws_url) as client,
    ):
        await client.create()
        await client.until("response.completed")
        await client.create()
        refused = await client.receive()
        assert (refused["type"], refused["status"], refused["error"]["code"]) == ("error", 503, "store_failed")
        await client.create(store=False)
        await client.until("response.completed")
        slow_disk.set()
    assert len(engine.calls) == 2


async def test_who_is_to_be_admitted_waits_for_a_disk_that_goes_on_whatever_comes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, second_begins = threading.Semaphore(0), threading.Event()

    def put(store: DiskStore, one: StoredResponse) -> None:
        if one.id == "b":
            second_begins.set()
        assert goes_on.acquire(timeout=600)

    monkeypatch.setattr(DiskStore, "_put", put)
    monkeypatch.setattr(archive_module, "MAX_UNWRITTEN", 1)
    archive = Archive(ResponseStore(10, 1000), ServerOptions(store_file=tmp_path / "a.db"))
    for name in "ab":
        archive.keep(entry(name))
    admitted = asyncio.create_task(archive.admit())
    await asyncio.sleep(0)
    for name in "cd":
        archive.keep(entry(name))
    goes_on.release()
    assert await asyncio.to_thread(second_begins.wait, 120)
    assert not admitted.done()
    goes_on.release(3)
    await admitted
    assert archive.state.error is None
    await archive.close()


async def test_a_disk_that_is_slow_for_long_is_no_error_of_its_and_refuses_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(DiskStore, "_put", lambda *_: goes_on.wait(600))
    monkeypatch.setattr(DiskStore, "busy_s", 0.0)  # what it does now, it has just begun
    monkeypatch.setattr(archive_module, "MAX_UNWRITTEN", 0)
    monkeypatch.setattr(archive_module, "DISK_TIMEOUT_S", 0.01)
    archive = Archive(ResponseStore(10, 1000), ServerOptions(store_file=tmp_path / "a.db"))
    archive.keep(entry("a"))
    with pytest.raises(ApiError, match=r"too many wait to be written.*store false"):
        await archive.admit()
    assert archive.state.error is None
    goes_on.set()
    await archive.close()


async def test_a_server_that_ends_answers_who_reads_from_a_disk_that_hangs(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(archive_module, "END_S", 0.01)
    is_asked, comes = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        is_asked.set()
        comes.wait(600)

    monkeypatch.setattr(DiskStore, "_get", hang)
    requests = (
        ("GET", "/v1/responses/resp_a", None),
        ("DELETE", "/v1/responses/resp_b", None),
        ("GET", "/v1/responses/resp_c?stream=true", None),
        ("POST", "/v1/responses", {"input": "Hi", "previous_response_id": "resp_d"}),
    )
    recall, num_asked, are_asked = Archive.recall, 0, asyncio.Event()

    async def count(archive: Archive, response_id: str) -> None:
        nonlocal num_asked
        num_asked += 1
        if num_asked == len(requests):
            are_asked.set()
        await recall(archive, response_id)

    monkeypatch.setattr(Archive, "recall", count)
    options = ServerOptions(store_file=tmp_path / "a.db")
    async with asyncio.timeout(120), httpx.AsyncClient() as client:
        async with serving(engine, options) as served:
            asking = [
                asyncio.create_task(client.request(method, served.url + path, json=body))
                for method, path, body in requests
            ]
            await are_asked.wait()
            assert await asyncio.to_thread(is_asked.wait, 120)
        answers = await asyncio.gather(*asking)
    comes.set()
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_failed")
        assert int(answer.headers["retry-after"]) > 0
    own = [record for record in caplog.records if record.name.startswith("unicorn_async")]
    told = [record.getMessage() for record in own if record.levelno >= logging.WARNING]
    assert told == [ANY] and "unicorn-store_0 (reading): no answer within 0.01 s of the end" in told[0]


async def test_a_service_that_nobody_has_stopped_waits_for_no_disk_that_hangs(
    tmp_path: Path, engine: FakeEngine, slow_disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "END_S", 0.01)
    monkeypatch.setattr(archive_module, "MAX_UNWRITTEN", 0)
    is_told = asyncio.Event()

    async def see(event: str) -> None:
        if "response.completed" in event:
            is_told.set()

    service = Service(ModelHost.around(engine), ServerOptions(store_file=tmp_path / "a.db"))
    asked = parse_object(json.dumps({"input": "Hi", "background": True}))
    async with asyncio.timeout(120), service.models, service.running():
        answer = await service.open_background(parse_responses_request(asked, defaults=SamplingParams()))
        following = asyncio.create_task(answer.log.follow(Retrieval().after, see))
        await is_told.wait()  # it is closed behind this, with a disk to wait for
    await following
    slow_disk.set()


async def test_a_response_that_is_deleted_at_the_end_is_gone_where_the_disk_goes_on(
    tmp_path: Path, slow_disk: threading.Event
) -> None:
    archive = Archive(ResponseStore(10, 1000), ServerOptions(store_file=tmp_path / "a.db"))
    archive.keep(entry("a"))
    archive.end()
    with pytest.raises(ApiError, match="the server ends"):
        await archive.remove("a")
    slow_disk.set()
    await archive.close()
    store = DiskStore(tmp_path / "a.db", 10)
    assert await store.get("a") is None
    await store.close(20)


async def test_who_reads_from_a_disk_that_hangs_is_answered_at_the_end(
    tmp_path: Path, slow_disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "END_S", 0.01)
    archive = Archive(ResponseStore(10, 1000), ServerOptions(store_file=tmp_path / "a.db"))
    archive.keep(entry("a"))
    asking = [asyncio.create_task(archive.recall("b")), asyncio.create_task(archive.remove("b"))]
    async with asyncio.timeout(120):
        await asyncio.sleep(0)
        archive.end()
        for one in asking:
            with pytest.raises(ApiError, match="the disk that responses are kept on fails"):
                await one
        await archive.close()
    slow_disk.set()
