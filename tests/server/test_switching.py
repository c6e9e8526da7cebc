"""Loading, unloading and switching models over the API."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.server.conftest import serving
from tests.server.fake_library import FakeLibrary, prepared
from tests.server.ws_client import connected, text_of
from unicorn_async.errors import CheckpointError, ConfigError, OutOfMemoryError
from unicorn_async.loader.progress import LoadProgress
from unicorn_async.server import ModelHost, ServerOptions
from unicorn_async.server.model_state import ModelStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.server.conftest import Served

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
async def models(library: FakeLibrary) -> AsyncIterator[ModelHost]:
    async with ModelHost(library) as host:
        yield host


@pytest.fixture
async def served(models: ModelHost) -> AsyncIterator[Served]:
    """A server that begins without a model."""
    async with serving(models) as found:
        yield found


async def load(client: httpx.AsyncClient, name: str, **fields: object) -> httpx.Response:
    return await client.post("/v1/models/load", json={"model": name, "wait": True, **fields})


async def chat(client: httpx.AsyncClient, **fields: object) -> tuple[int, str, str]:
    """Ask; return the status, the model and the answer, or the error's code and message."""
    response = await client.post("/v1/chat/completions", json={**CHAT, **fields})
    body = response.json()
    if "error" in body:
        return response.status_code, body["error"]["code"], body["error"]["message"]
    return response.status_code, body["model"], body["choices"][0]["message"]["content"]


async def test_a_server_without_a_model_says_so_until_one_is_loaded(client: httpx.AsyncClient) -> None:
    status, code, message = await chat(client)
    assert (status, code) == (503, "no_model")
    assert "POST /v1/models/load" in message
    health = await client.get("/health")
    assert (health.status_code, health.json()["status"], health.json()["model"]) == (503, "empty", None)
    listed = (await client.get("/v1/models")).json()["data"]
    assert [(model["id"], model["loaded"]) for model in listed] == [("a", False), ("b", False), ("c", False)]
    loaded = await load(client, "b")
    assert (loaded.status_code, loaded.json()["model"], loaded.json()["status"]) == (200, "b", "ready")
    assert await chat(client) == (200, "b", "I am b")
    assert (await client.get("/health")).json()["can_switch"] is True


async def test_a_load_is_taken_at_once_and_requests_wait_for_it(
    client: httpx.AsyncClient, library: FakeLibrary
) -> None:
    library.hold_open["a"] = asyncio.Event()
    taken = await client.post("/v1/models/load", json={"model": "a"})
    assert (taken.status_code, taken.json()["model"], taken.json()["status"]) == (202, "a", "opening")
    waiting = asyncio.create_task(chat(client, model="a"))
    health = await client.get("/health")
    assert (health.status_code, health.json()["status"], health.json()["model"]) == (200, "opening", "a")
    library.hold_open["a"].set()
    assert await waiting == (200, "a", "I am a")


async def test_the_loaded_model_is_listed_first_and_switches_with_a_load(client: httpx.AsyncClient) -> None:
    for name in ("b", "a", "c"):
        await load(client, name)
        listed = (await client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed if model["loaded"]] == [name]
        assert listed[0]["id"] == name
        assert len(listed) == 3
        assert await chat(client, model=name) == (200, name, f"I am {name}")
    assert (await chat(client, model="a"))[:2] == (404, "model_not_found")
    assert (await client.get("/v1/models/a")).json()["loaded"] is False
    assert (await client.get("/v1/models/d")).status_code == 404


REFUSED = [
    ({}, 400, "missing_parameter", "model"),
    ({"model": 5}, 400, "invalid_type", "model"),
    ({"model": "x" * 600}, 400, "invalid_value", "model"),
    ({"model": "unknown"}, 404, "model_not_found", "model"),
    ({"model": "/etc/passwd"}, 404, "model_not_found", "model"),
    ({"model": "damaged"}, 400, "model_unusable", "model"),
    ({"model": "b", "weights": "int3"}, 400, "invalid_value", "weights"),
    ({"model": "b", "max_context": 0}, 400, "invalid_value", "max_context"),
    ({"model": "b", "device": "0"}, 400, "unknown_parameter", "device"),
    ({"model": "b", "loras": ["x"]}, 400, "invalid_type", "loras[0]"),
    ({"model": "b", "loras": [{"weight": 1}]}, 400, "invalid_value", "loras[0]"),
    ({"model": "b", "loras": [{"name": "x", "path": "y"}]}, 400, "invalid_value", "loras[0]"),
    ({"model": "b", "loras": [{"name": "x", "weight": 1e9}]}, 400, "invalid_value", "loras[0].weight"),
    ({"model": "b", "loras": [{"name": "x", "rank": 1}]}, 400, "unknown_parameter", "loras[0].rank"),
    ({"model": "b", "loras": [{"name": "x"}] * 100}, 400, "invalid_value", "loras"),
]


async def test_what_can_not_work_is_refused_and_the_model_stays(client: httpx.AsyncClient) -> None:
    await load(client, "a")
    for body, status, code, param in REFUSED:
        response = await client.post("/v1/models/load", json=body)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (status, code, param), body
    assert await chat(client) == (200, "a", "I am a")


async def test_a_switch_ends_answers_under_way_with_an_error_as_their_last_event(
    client: httpx.AsyncClient, served: Served, library: FakeLibrary
) -> None:
    await load(client, "a")
    library.engines[0].hold[1] = asyncio.Event()
    async with connected(served.ws_url) as socket:
        await socket.create(model="a")
        await socket.until("response.output_text.delta")
        await load(client, "b")
        last = (await socket.answer())[-1]
        assert last["type"] == "response.failed"
        assert "is being switched to 'b'" in last["response"]["error"]["message"]
        await socket.create()
        events = await socket.answer()
        assert (text_of(events), events[-1]["response"]["model"]) == ("I am b", "b")
        await socket.create(model="a")
        error = await socket.receive()
        assert (error["type"], error["error"]["code"]) == ("error", "model_not_found")


async def test_a_queued_request_for_the_old_model_is_not_answered_by_the_new_one(
    client: httpx.AsyncClient, served: Served, library: FakeLibrary
) -> None:
    await load(client, "a")
    library.engines[0].hold[1] = asyncio.Event()
    async with connected(served.ws_url) as socket:
        await socket.create(model="a")
        await socket.create(model="a")
        await socket.until("response.output_text.delta")
        await load(client, "b")
        assert (await socket.answer())[-1]["type"] == "response.failed"
        assert (await socket.receive())["error"]["code"] == "model_not_found"


async def test_a_switch_when_idle_lets_answers_end(
    client: httpx.AsyncClient, served: Served, library: FakeLibrary
) -> None:
    await load(client, "a")
    library.engines[0].hold[1] = asyncio.Event()
    async with connected(served.ws_url) as socket:
        await socket.create()
        await socket.until("response.output_text.delta")
        taken = await client.post("/v1/models/load", json={"model": "b", "when_idle": True})
        assert taken.json()["status"] == "waiting"
        library.engines[0].hold[1].set()
        events = await socket.answer()
        assert (events[-1]["type"], events[-1]["response"]["model"]) == ("response.completed", "a")
        await socket.create()
        assert text_of(await socket.answer()) == "I am b"


@pytest.mark.parametrize("reason", ["v.gguf: truncated", "v.gguf/config.json: empty"])
async def test_an_error_that_begins_with_the_models_name_has_it_once(
    reason: str, client: httpx.AsyncClient, library: FakeLibrary
) -> None:
    library.more = ("v.gguf",)
    library.fail_open["v.gguf"] = CheckpointError(reason)
    failed = await load(client, "v.gguf")
    assert failed.json()["error"]["message"] == reason
    _, _, message = await chat(client)
    assert message == f"the model 'v.gguf' could not be loaded: {reason.removeprefix('v.gguf: ')}"


async def test_a_model_that_can_not_be_opened_is_told_to_everybody(
    client: httpx.AsyncClient, library: FakeLibrary
) -> None:
    await load(client, "a")
    library.fail_open["b"] = OutOfMemoryError("2 GiB needed")
    failed = await load(client, "b")
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "model_load_failed")
    assert failed.json()["error"]["message"] == "b: 2 GiB needed"
    health = await client.get("/health")
    assert (health.status_code, health.json()["status"], health.json()["error"]) == (503, "error", "2 GiB needed")
    status, code, message = await chat(client)
    assert (status, code) == (503, "model_load_failed")
    assert "2 GiB needed" in message
    await load(client, "a")
    assert await chat(client) == (200, "a", "I am a")


async def test_clients_are_told_no_folders_of_the_disk_and_the_log_is(
    client: httpx.AsyncClient,
    served: Served,
    models: ModelHost,
    library: FakeLibrary,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    path = "/srv/hidden/m/model.safetensors"
    library.fail_open["b"] = CheckpointError(f"{path}: ends too early")
    async with connected(served.ws_url) as socket:
        failed = (await load(client, "b")).json()["error"]["message"]
        assert failed == "b: model.safetensors: ends too early"
        await socket.create(model="b")
        told = [failed, str(await socket.receive()), (await client.get("/health")).text, (await chat(client))[2]]
    library.hold_load.add("c")
    await client.post("/v1/models/load", json={"model": "c"})
    waiting = asyncio.create_task(chat(client, model="c"))
    async for state in models.watch():
        if state.status is ModelStatus.LOADING:
            break
    await library.engines[0].fail_load(CheckpointError(f"{path}: changed"))
    told.append((await waiting)[2])
    for refusal in (CheckpointError(f"{path}: no layers"), ConfigError(f"{path}: no adapter")):
        library.refuse = refusal
        told.append((await load(client, "a")).json()["error"]["message"])
    assert not [text for text in told if "hidden" in text or "model.safetensors: " not in text]
    for what in ("ends too early", "changed", "no layers", "no adapter"):
        assert f"{path}: {what}" in caplog.text


async def test_a_load_that_a_newer_one_replaced_is_told_so(client: httpx.AsyncClient, library: FakeLibrary) -> None:
    library.hold_open["a"] = asyncio.Event()
    first = asyncio.create_task(load(client, "a"))
    await library.opening.wait()
    health = (await client.get("/health")).json()
    assert (health["status"], health["waits_for"]) == ("opening", "device")
    await load(client, "b")
    replaced = await first
    assert (replaced.status_code, replaced.json()["error"]["code"]) == (409, "superseded")
    assert await chat(client) == (200, "b", "I am b")


async def test_an_engine_that_is_being_closed_is_not_asked_for_anything(
    client: httpx.AsyncClient, library: FakeLibrary
) -> None:
    await load(client, "a")
    library.hold_close["a"] = asyncio.Event()
    await client.post("/v1/models/load", json={"model": "b"})
    while (health := (await client.get("/health")).json())["status"] != "closing" or "device" in health:
        assert health["status"] in ("ready", "closing")
    assert health["model"] == "b"
    library.hold_close["a"].set()
    assert await chat(client, model="b") == (200, "b", "I am b")


async def test_unload_closes_the_model(client: httpx.AsyncClient, library: FakeLibrary) -> None:
    await load(client, "a")
    refused = await client.post("/v1/models/unload", json={"model": "b"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    unnamed = await client.post("/v1/models/unload", json={"model": ""})
    assert (unnamed.status_code, unnamed.json()["error"]["param"]) == (400, "model")
    done = await client.post("/v1/models/unload", json={"model": "a", "wait": True})
    assert (done.status_code, done.json()["status"]) == (200, "empty")
    assert library.num_open == 0
    assert (await chat(client))[:2] == (503, "no_model")
    assert (await client.post("/v1/models/unload")).status_code == 200  # nothing is left to do


async def test_a_download_that_a_model_waits_for_is_told(
    client: httpx.AsyncClient, served: Served, library: FakeLibrary
) -> None:
    library.downloads = [LoadProgress(0, 0, 0, 0, 0.1 * part, False, False, 1000, 100 * part) for part in range(5)]
    library.hold_open["a"] = asyncio.Event()
    async with connected(f"{served.ws_url}?events=unicorn") as socket:
        assert (await socket.receive())["status"] == "empty"
        loading = asyncio.create_task(client.post("/v1/models/load", json={"model": "a"}))
        events = await socket.until("unicorn.load.progress")
        assert (events[-1]["bytes_to_download"], events[-1]["model"], events[-1]["done"]) == (1000, "a", False)
        health = (await client.get("/health")).json()
        assert (health["status"], health["waits_for"]) == ("opening", "download")
        assert health["load"]["bytes_to_download"] == 1000 and "device" not in health
        while events[-1].get("waits_for") != "device":
            events.append(await socket.receive())
        told = [event["waits_for"] for event in events if event["type"] == "unicorn.model"]
        assert told.count("download") == 1
        library.hold_open["a"].set()
        await loading


async def test_watchers_follow_a_switch(client: httpx.AsyncClient, served: Served, library: FakeLibrary) -> None:
    library.hold_load |= {"a", "b"}
    async with connected(f"{served.ws_url}?events=unicorn") as socket:
        event = await socket.receive()
        assert (event["type"], event["status"], event["model"]) == ("unicorn.model", "empty", None)
        await client.post("/v1/models/load", json={"model": "a"})
        assert (await socket.until("unicorn.load.progress"))[-1]["model"] == "a"
        await client.post("/v1/models/load", json={"model": "b"})
        assert (await socket.until("unicorn.load.progress"))[-1]["model"] == "b"
        await library.engines[1].set_loaded(100)
        assert (await socket.until("unicorn.load.progress"))[-1]["done"] is True
        assert (await socket.receive())["status"] == "ready"
        library.fail_open["c"] = OutOfMemoryError("2 GiB needed")
        await client.post("/v1/models/load", json={"model": "c"})
        failed = (await socket.until("unicorn.load.failed"))[-1]
        assert (failed["model"], failed["error"]["message"]) == ("c", "2 GiB needed")


async def test_a_server_that_ends_tells_those_who_wait_for_a_load(
    client: httpx.AsyncClient, served: Served, library: FakeLibrary
) -> None:
    library.hold_open["a"] = asyncio.Event()
    waiting = [asyncio.create_task(load(client, "a"))]
    await library.opening.wait()
    waiting.append(asyncio.create_task(client.post("/v1/chat/completions", json=CHAT)))
    async with connected(served.ws_url) as socket:
        for stream_id in ("one", "one", "two"):
            await socket.create(stream_id=stream_id)
        await socket.send({"type": "response.cancel", "response_id": "resp_none"})
        assert (await socket.receive())["status"] == 404  # so all before it are in their streams
        served.task.cancel()
        for task in waiting:
            assert (await task).status_code == 503
        told = [await socket.receive() for _ in range(3)]
        assert {(one["type"], one["status"]) for one in told} == {("error", 503)}
        assert sorted(one["stream_id"] for one in told) == ["one", "one", "two"]
        assert "shutting down" in told[0]["error"]["message"]
        with pytest.raises(ConnectionClosed) as closed:
            await socket.receive()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012


async def test_a_server_that_ends_tells_those_whose_model_is_still_checked(
    client: httpx.AsyncClient, served: Served, library: FakeLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    library.hold_prepare = threading.Event()
    try:
        waiting = asyncio.create_task(load(client, "a"))
        await asyncio.to_thread(library.preparing.wait)
        served.task.cancel()
        response = await waiting
    finally:
        library.hold_prepare.set()
    assert response.status_code == 503
    assert "shutting down" in response.json()["error"]["message"]
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_server_that_keeps_its_model_refuses_to_switch(library: FakeLibrary) -> None:
    async with ModelHost(library, can_switch=False) as models:
        await models.begin(prepared("a")).done()
        async with serving(models) as served, httpx.AsyncClient(base_url=served.url) as client:
            for path in ("load", "unload"):
                refused = await client.post(f"/v1/models/{path}", json={"model": "a"})
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, "switching_is_off")
            assert (await client.get("/health")).json()["can_switch"] is False


async def test_loads_need_the_key_and_the_servers_own_page(models: ModelHost, library: FakeLibrary) -> None:
    evil = {"origin": "https://evil.example"}
    async with serving(models) as served, httpx.AsyncClient(base_url=served.url) as client:
        for path in ("load", "unload"):
            body = '{"model": "a"}'
            assert (await client.post(f"/v1/models/{path}", content=body, headers=evil)).status_code == 403
    async with (
        serving(models, ServerOptions(api_key="sesame")) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        assert (await load(client, "a")).status_code == 401
    assert library.engines == []


async def test_a_refused_websocket_is_one_line_in_the_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(Exception, match="403"):
        async with connected(served.ws_url, origin="https://evil.example"):
            pass
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("unicorn_async")]
    assert [line for line in lines if "evil.example" in line] == lines[-1:]
