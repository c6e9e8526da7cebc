"""A gateway and two replicas of the demo model, on Ray Serve; skipped where Ray is not installed."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.lasting_port import lasting_port
from unicorn_async.ray import build

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install unicorn_async[ray]")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

LIMIT = 5000
TEXTS = [f"{number}: tell me of it" for number in range(24)]  # that all of them have one replica: 1 in 8 million
FINAL = ("response.completed", "response.incomplete", "response.failed", "error")
LONG = {"model": "unicorn-demo", "max_output_tokens": 400, "min_tokens": 400, "temperature": 0}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    import ray
    from ray import serve

    port = lasting_port()
    ray.init(num_cpus=2, object_store_memory=80_000_000, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"port": port})
        few = {"num_gpus": 0, "num_cpus": 0.5, "max_context": 512, "allow_software": True, "device": "llvmpipe"}
        few |= {"max_message_bytes": LIMIT, "gateway_cpus": 0.5, "beginning_chars": 300}
        serve.run(build({"model": "demo", "min_replicas": 2, "max_replicas": 2, **few}))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            yield client
    finally:
        serve.shutdown()
        ray.shutdown()


def ask(client: httpx.Client, text: str, **fields: object) -> dict[str, Any]:
    body = {"model": "unicorn-demo", "input": text, "max_output_tokens": 4, "temperature": 0, **fields}
    answer = client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def replica_of(response: dict[str, Any]) -> str:
    return str(response["id"]).split("_")[1]


def ws_url(client: httpx.Client) -> str:
    return f"{client.base_url.copy_with(scheme='ws')}".rstrip("/") + "/v1/responses"


async def last_frame(client: httpx.Client, message: str) -> dict[str, object]:
    """Return what a websocket answers to one message."""
    async with connect(ws_url(client), proxy=None) as websocket:
        await websocket.send(message)
        return dict(json.loads(await websocket.recv()))


@pytest.mark.parametrize(("method", "path"), [("POST", "load"), ("POST", "unload"), ("POST", "placement")])
def test_without_a_key_models_are_not_managed_through_the_proxy(client: httpx.Client, method: str, path: str) -> None:
    refused = client.request(method, f"/v1/models/{path}", json={"model": "unicorn-demo"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "key_needed")


def test_without_a_key_metrics_are_not_shown_through_the_proxy(client: httpx.Client) -> None:
    refused = client.get("/metrics", headers={"x-forwarded-for": "127.0.0.1"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "key_needed")
    assert client.get("/v1/models").status_code == 200


async def test_steps_are_not_watched_through_the_proxy(client: httpx.Client) -> None:
    event = await last_frame(client, '{"type": "unicorn.watch", "interval_ms": 100}')
    assert (event["status"], event["error"]["code"]) == (403, "not_through_proxy")  # type: ignore[index]


def test_a_body_is_bounded_behind_the_proxy(client: httpx.Client) -> None:
    def parts() -> Iterator[bytes]:
        yield b'{"model": "unicorn-demo", "input": "'
        yield LIMIT * b"a"
        yield b'"}'

    for body in (b"".join(parts()), parts()):
        refused = client.post("/v1/responses", content=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "message_too_large")


async def test_a_frame_is_bounded_behind_the_proxy(client: httpx.Client) -> None:
    with pytest.raises(ConnectionClosed) as closed:
        await last_frame(client, LIMIT * "a" + "a")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009
    assert (await last_frame(client, LIMIT * "a"))["type"] == "error"


def test_the_same_answer_comes_over_http_and_as_events_and_in_a_chat(client: httpx.Client) -> None:
    whole = ask(client, "Hello", max_output_tokens=12)
    text = whole["output"][0]["content"][0]["text"]
    body = {"input": "Hello", "max_output_tokens": 12, "temperature": 0, "stream": True}
    with client.stream("POST", "/v1/responses", json=body) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == text
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0}
    told = client.post("/v1/chat/completions", json=chat).json()
    assert told["choices"][0]["message"]["content"] == text


async def test_a_websocket_goes_on_cancels_and_is_told_what_is_served(client: httpx.Client) -> None:
    async with connect(ws_url(client) + "?events=unicorn", proxy=None) as websocket:
        model = json.loads(await websocket.recv())
        assert (model["type"], model["model"], model["status"]) == ("unicorn.model", "unicorn-demo", "ready")
        await websocket.send(json.dumps({"type": "response.create", "input": "Hello", "store": False, **LONG}))
        while (event := json.loads(await websocket.recv()))["type"] != "response.output_text.delta":
            pass
        await websocket.send('{"type": "response.cancel"}')
        while (event := json.loads(await websocket.recv()))["type"] not in FINAL:
            pass
        assert (event["type"], event["response"]["status"]) == ("response.incomplete", "cancelled")
        more = {
            "input": "More",
            "store": False,
            "max_output_tokens": 2,
            "previous_response_id": event["response"]["id"],
        }
        await websocket.send(json.dumps({"type": "response.create", **more}))
        while (event := json.loads(await websocket.recv()))["type"] not in FINAL:
            pass
        assert event["type"] in ("response.completed", "response.incomplete")


def test_conversations_that_begin_alike_share_a_replica_and_what_it_has_computed(client: httpx.Client) -> None:
    begins = "An old sailor has seen each of the seven seas, and tells of the storms that he met there. " * 4
    first, second = (ask(client, begins + text) for text in ("Who is he?", "Where does he sail?"))
    assert replica_of(first) == replica_of(second)
    assert second["usage"]["input_tokens_details"]["cached_tokens"] >= 32


def test_stored_responses_are_found_where_they_are_and_overviews_tell_of_both(client: httpx.Client) -> None:
    answers = [ask(client, text) for text in TEXTS]
    assert len({replica_of(answer) for answer in answers}) == 2
    for answer in answers:
        assert client.get(f"/v1/responses/{answer['id']}").json()["id"] == answer["id"]
    more = ask(client, "and then?", previous_response_id=answers[0]["id"])
    assert replica_of(more) == replica_of(answers[0])
    health = client.get("/health").json()
    assert {one["replica"] for one in health["replicas"]} == {replica_of(answer) for answer in answers}
    assert health["status"] == "ready"


async def test_a_replica_that_is_killed_loses_its_own_answers_alone(client: httpx.Client) -> None:

    by_replica: dict[str, list[str]] = {}
    for text in TEXTS:
        by_replica.setdefault(replica_of(ask(client, text)), []).append(text)
    doomed, other = by_replica
    lanes = {f"{name} {text}": text for name in by_replica for text in by_replica[name][:2]}
    body = {"input": by_replica[doomed][2], "stream": True, **LONG}
    async with (
        httpx.AsyncClient(base_url=client.base_url) as http,
        connect(ws_url(client), proxy=None) as websocket,
    ):
        for stream_id, text in lanes.items():
            await websocket.send(json.dumps({"type": "response.create", "stream_id": stream_id, "input": text, **LONG}))
        whole = asyncio.create_task(http.post("/v1/responses", json={**body, "stream": False}))
        async with http.stream("POST", "/v1/responses", json=body) as stream:
            lines = stream.aiter_lines()
            async for line in lines:
                if line == "event: response.output_text.delta":
                    break
            kill(doomed)
            events = [json.loads(line[6:]) async for line in lines if line.startswith("data: ")]
        ends: dict[str, dict[str, Any]] = {}
        while len(ends) < len(lanes):
            event = json.loads(await websocket.recv())
            if event["type"] in FINAL:
                ends[event["stream_id"]] = event
        refused = await whole
    assert (events[-1]["type"], events[-1]["code"]) == ("error", "replica_lost")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "replica_lost")
    assert refused.headers["retry-after"] == "1"
    for stream_id, event in ends.items():
        if stream_id.startswith(other):
            assert event["response"]["usage"]["output_tokens"] == 400, event
        else:
            assert (event["type"], event["error"]["code"]) == ("error", "replica_lost"), event
    for text in TEXTS:
        assert replica_of(ask(client, text)) != doomed


def kill(replica: str) -> None:
    import ray

    named = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    ray.kill(ray.get_actor(next(name for name in named if name.endswith(replica)), namespace="serve"))
