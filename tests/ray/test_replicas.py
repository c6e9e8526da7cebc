"""Two replicas of the demo model behind one address; skipped where Ray is not installed."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import httpx
import pytest

from unicorn_async.ray import build

if TYPE_CHECKING:
    from collections.abc import Iterator

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install unicorn_async[ray]")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

SESSIONS = [f"session {number}" for number in range(24)]  # that all of them have one replica: 1 in 8 million


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray.init(num_cpus=2, object_store_memory=80_000_000, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"port": port})
        few = {"num_gpus": 0, "num_cpus": 0.5, "max_context": 512, "allow_software": True, "device": "llvmpipe"}
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


def test_a_session_has_its_replica_and_another_one_when_that_dies(client: httpx.Client) -> None:
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
