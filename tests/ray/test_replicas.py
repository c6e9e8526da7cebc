"""Two replicas of the demo model behind one address; skipped where Ray is not installed."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from unicorn_async.ray import build

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install unicorn_async[ray]")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

LIMIT = 5000
SESSIONS = [f"session {number}" for number in range(24)]  # that all of them have one replica: 1 in 8 million


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    import ray
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray.init(num_cpus=2, object_store_memory=80_000_000, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"port": port})
        few = {"num_gpus": 0, "num_cpus": 0.5, "max_context": 512, "allow_software": True, "device": "llvmpipe"}
        few |= {"max_message_bytes": LIMIT}
        serve.run(build({"model": "demo", "min_replicas": 2, "max_replicas": 2, **few}))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
    finally:
        serve.shutdown()
        ray.shutdown()


def ask(client: httpx.Client, session: str) -> dict[str, object]:
    body = {"model": "unicorn-demo", "input": "Hello", "max_output_tokens": 4, "temperature": 0}
    answer = client.post("/v1/responses", json=body, headers={"x-session-id": session})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def last_frame(client: httpx.Client, message: str) -> dict[str, object]:
    """Return what a websocket answers to one message."""
    url = f"{client.base_url.copy_with(scheme='ws')}".rstrip("/") + "/v1/responses"
    async with connect(url, proxy=None) as websocket:
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


def test_a_session_has_its_replica_and_another_one_when_that_dies(client: httpx.Client) -> None:
    import ray

    answers = {session: ask(client, session) for session in SESSIONS}
    assert len({str(answer["output"][0]["content"]) for answer in answers.values()}) == 1  # type: ignore[index]

    def found(session: str) -> bool:
        path = f"/v1/responses/{answers[session]['id']}"
        return client.get(path, headers={"x-session-id": session}).status_code == 200

    assert all(found(session) for session in SESSIONS)
    named = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    replicas = [name for name in named if name.startswith("SERVE_REPLICA")]
    assert len(replicas) == 2
    ray.kill(ray.get_actor(replicas[0], namespace="serve"))
    for session in SESSIONS:
        ask(client, session)
    assert {found(session) for session in SESSIONS} == {True, False}
