"""A gateway in front of two replicas in this process: who answers, and what becomes of answers whose replica dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.ray.near_engines import gateway_before, replicas_of
from tests.server.conftest import patient
from tests.server.fake_engine import FakeEngine
from tests.server.ws_client import connected, text_of
from unicorn_async.server import ServerOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.ray.near_engines import NearEngines
    from tests.server.conftest import Served

OPTIONS = ServerOptions(max_message_bytes=5000)


class Pair:
    """A gateway and its replicas."""

    def __init__(self, served: Served, engines: NearEngines, fakes: dict[str, FakeEngine]) -> None:
        self.served = served
        self.engines = engines
        self.fakes = fakes
        self.http = httpx.AsyncClient(base_url=served.url, trust_env=False)

    async def answer(self, text: str, **fields: object) -> dict[str, object]:
        told = await self.http.post("/v1/responses", json={"input": text, **fields})
        assert told.status_code == 200, told.text
        return dict(told.json())

    def whose(self, response: object) -> str:
        return str(response["id"]).split("_")[1]  # type: ignore[index]

    async def texts(self) -> tuple[str, str]:
        """Two texts that belong to replicas a and b."""
        found: dict[str, str] = {}
        for number in range(100):
            found.setdefault(self.whose(await self.answer(f"text {number}")), f"text {number}")
            if len(found) == 2:
                return found["a"], found["b"]
        raise AssertionError(found)


@contextlib.asynccontextmanager
async def pair_with(options: ServerOptions) -> AsyncIterator[Pair]:
    fakes, options = {"a": FakeEngine(), "b": FakeEngine()}, patient(options)
    async with replicas_of(fakes, options) as engines, gateway_before(engines, options) as served:
        pair = Pair(served, engines, fakes)
        async with pair.http:
            yield pair


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with pair_with(OPTIONS) as found:
        yield found


async def test_a_conversation_stays_where_it_began(pair: Pair) -> None:
    for text in await pair.texts():
        first = await pair.answer(text)
        second = await pair.answer("and then?", previous_response_id=first["id"])
        assert pair.whose(second) == pair.whose(first) == pair.whose(await pair.answer(text))
        path = f"/v1/responses/{second['id']}"
        assert (await pair.http.get(path)).json()["id"] == second["id"]
        assert len((await pair.http.get(f"{path}/input_items")).json()["data"]) == 3
        assert (await pair.http.delete(path)).json()["deleted"] is True
        assert (await pair.http.get(path)).status_code == 404
    assert pair.engines.num_asked_all == 0


async def test_a_name_that_its_client_chose_is_looked_for_once_by_all(pair: Pair) -> None:
    name = "resp_" + 32 * "a"
    other = Pair(pair.served, pair.engines, pair.fakes)
    await pair.answer((await pair.texts())[1], response_id=name, background=True)
    asked = pair.engines.num_asked_all
    for _ in range(2):
        assert (await other.http.get(f"/v1/responses/{name}")).json()["id"] == name
    taken = await pair.http.post("/v1/responses", json={"input": "else", "response_id": name, "background": True})
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "response_exists")
    assert pair.engines.num_asked_all == asked
    assert (await other.http.get("/v1/responses/resp_" + 32 * "b")).status_code == 404
    assert pair.engines.num_asked_all == asked + 1
    await other.http.aclose()


async def test_a_stream_whose_replica_dies_says_so_and_others_go_on(pair: Pair) -> None:
    text_a, text_b = await pair.texts()
    for fake in pair.fakes.values():
        fake.hold[1] = asyncio.Event()
    body = {"stream": True, "max_output_tokens": 9}
    async with (
        pair.http.stream("POST", "/v1/responses", json={"input": text_a, **body}) as lost,
        pair.http.stream("POST", "/v1/responses", json={"input": text_b, **body}) as kept,
    ):
        lines = {name: one.aiter_lines() for name, one in (("lost", lost), ("kept", kept))}
        for name in lines:
            async for line in lines[name]:
                if line == "event: response.output_text.delta":
                    break
        pair.engines.kill("a")
        events = [json.loads(line[6:]) async for line in lines["lost"] if line.startswith("data: {")]
        assert [event["type"] for event in events] == ["response.output_text.delta", "error"]
        assert events[1]["code"] == "replica_lost"
        assert events[1]["sequence_number"] == events[0]["sequence_number"] + 1
        assert pair.fakes["a"].calls[-1].closed.is_set()
        pair.fakes["b"].hold[1].set()
        assert "event: response.completed" in [line async for line in lines["kept"]]
    assert pair.whose(await pair.answer(text_a)) == "b"


async def test_a_chat_stream_whose_replica_dies_has_an_error_in_the_place_of_a_chunk(pair: Pair) -> None:
    pair.engines.kill("b")
    pair.fakes["a"].hold[1] = asyncio.Event()
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with pair.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        chunks = (json.loads(line[6:]) async for line in answer.aiter_lines() if line.startswith("data: "))
        async for chunk in chunks:
            if chunk["choices"][0]["delta"].get("content"):
                break
        pair.engines.kill("a")
        last = [chunk async for chunk in chunks][-1]
    assert (last["error"]["code"], last["error"]["type"]) == ("replica_lost", "server_error")


async def test_a_whole_answer_whose_replica_dies_is_a_503(pair: Pair) -> None:
    text, _ = await pair.texts()
    pair.fakes["a"].hold[1] = asyncio.Event()
    pair.fakes["a"].called.clear()
    waiting = asyncio.create_task(pair.http.post("/v1/responses", json={"input": text}))
    await pair.fakes["a"].called.wait()
    pair.engines.kill("a")
    told = await waiting
    assert (told.status_code, told.json()["error"]["code"], told.headers["retry-after"]) == (503, "replica_lost", "1")


async def test_a_websocket_s_lane_ends_with_its_replica_and_the_connection_goes_on(pair: Pair) -> None:
    texts = await pair.texts()
    for fake in pair.fakes.values():
        fake.hold[1] = asyncio.Event()
    async with connected(pair.served.ws_url) as client:
        for name, text in zip("ab", texts, strict=True):
            await client.create(text, stream_id=name)
            await client.until("response.output_text.delta")
        pair.engines.kill("a")
        error = await client.receive()
        assert (error["type"], error["status"], error["stream_id"]) == ("error", 503, "a")
        assert error["error"]["code"] == "replica_lost"
        pair.fakes["b"].hold[1].set()
        events = await client.answer()
        assert (events[-1]["type"], events[-1]["stream_id"]) == ("response.completed", "b")
        await client.create(texts[0], stream_id="a")
        assert text_of(await client.answer()) == "Hello there, friend"


async def test_what_a_connection_did_not_store_goes_on_there_alone(pair: Pair) -> None:
    async with connected(pair.served.ws_url) as client, connected(pair.served.ws_url) as stranger:
        await client.create("one", store=False)
        name = (await client.answer())[-1]["response"]["id"]
        for socket, wanted in ((client, "response.completed"), (stranger, "error")):
            await socket.create("two", store=False, previous_response_id=name)
            assert (await socket.answer())[-1]["type"] == wanted


async def test_what_goes_on_from_a_dead_replica_s_response_is_refused_by_name(pair: Pair) -> None:
    first = await pair.answer((await pair.texts())[0])
    pair.engines.kill("a")
    told = await pair.http.post("/v1/responses", json={"input": "on", "previous_response_id": first["id"]})
    assert (told.status_code, told.json()["error"]["code"]) == (400, "previous_response_not_found")


async def test_health_and_metrics_tell_of_each_replica(pair: Pair) -> None:
    await pair.answer("Hello")
    health = await pair.http.get("/health")
    assert health.status_code == 200
    assert [one["replica"] for one in health.json()["replicas"]] == ["a", "b"]
    assert (await pair.http.get("/ready")).json() == {"ready": True, "status": "ready"}
    families = {one.name: one for one in text_string_to_metric_families((await pair.http.get("/metrics")).text)}
    assert {one.labels["replica"] for one in families["unicorn_answers"].samples} <= {"a", "b"}
    assert [one.value for one in families["unicorn_replicas"].samples] == [2]
    assert {"gateway": "front"} in [one.labels for one in families["unicorn_websockets"].samples]


async def test_a_gateway_is_as_well_and_as_ready_as_the_best_replica() -> None:
    outage = "the tokenizer's process can't be had"
    async with pair_with(OPTIONS) as pair:
        pair.fakes["a"].outages["tokenizer"] = outage
        health = await pair.http.get("/health")
        assert (health.status_code, health.json()["error"]) == (200, None)
        assert [(one["replica"], one["error"]) for one in health.json()["replicas"]] == [("b", None), ("a", outage)]
        assert (await pair.http.get("/ready")).status_code == 200
    async with pair_with(OPTIONS) as pair:
        for fake in pair.fakes.values():
            fake.outages["tokenizer"] = outage
        health, ready = await pair.http.get("/health"), await pair.http.get("/ready")
        assert (health.status_code, health.json()["error"]) == (503, outage)
        assert (ready.status_code, ready.json()["ready"]) == (503, False)


async def test_without_replicas_nothing_is_well() -> None:
    async with pair_with(OPTIONS) as pair:
        pair.engines.kill("a")
        pair.engines.kill("b")
        health = await pair.http.get("/health")
        assert (health.status_code, health.json()["replicas"]) == (503, [])
        assert (await pair.http.get("/ready")).status_code == 503


async def test_keys_limits_and_other_sites_are_the_gateway_s() -> None:
    options = ServerOptions(api_key="sesame", max_message_bytes=100, cors_origins=("https://page.example",))
    async with pair_with(options) as pair:
        refused = await pair.http.post("/v1/responses", json={"input": "Hi"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "missing_api_key")
        pair.http.headers["authorization"] = "Bearer sesame"
        large = await pair.http.post("/v1/responses", json={"input": 100 * "a"})
        assert (large.status_code, large.json()["error"]["code"]) == (413, "message_too_large")
        wrong = await pair.http.post("/v1/responses", content=b'{"input": "a", "input": "b"}')
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "duplicate_parameter")
        assert pair.engines.sessions == []
        good = await pair.http.post(
            "/v1/responses", json={"input": "Hi"}, headers={"origin": "https://page.example", "x-request-id": "mine"}
        )
        assert good.headers["access-control-allow-origin"] == "https://page.example"
        assert (good.status_code, good.headers["x-request-id"]) == (200, "mine")
        assert good.headers.get_list("x-request-id") == ["mine"]


async def test_a_client_that_goes_has_its_answer_ended(pair: Pair) -> None:
    text, _ = await pair.texts()
    pair.fakes["a"].hold[1] = asyncio.Event()
    async with pair.http.stream("POST", "/v1/responses", json={"input": text, "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if line == "event: response.output_text.delta":
                break
    await pair.fakes["a"].calls[-1].closed.wait()
