from __future__ import annotations

import asyncio
import gzip
import json
import socket
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.fake_engine import words
from unicorn_async.engine.types import Token
from unicorn_async.errors import ConfigError, DeviceLostError
from unicorn_async.server import ServerOptions, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.server.conftest import Served, ServeWith
    from tests.server.fake_engine import FakeEngine

ASK = {"input": "Hi", "stream": True}
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


async def test_events_are_framed_as_server_sent_events(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/responses", json=ASK)
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.strip().split("\n\n")
    for block in blocks:
        name, data = block.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"


async def test_a_chat_stream_ends_with_done(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert response.text.endswith("data: [DONE]\n\n")


async def test_health_tells_of_the_load_and_of_its_failure(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    health = (await client.get("/health")).json()
    assert (health["status"], health["loaded"], health["model"]) == ("ready", 1.0, "fake-model")
    device = {"name": "Fake GPU", "type": "software", "driver": "fake driver", "driver_info": "1.2.3", "software": True}
    assert health["device"] == device
    assert health["kernels"] == ["linear_vec_fake", "rms_norm"]
    assert (health["cache"]["state"], health["cache"]["bytes"]) == ("hit", 100)
    adapter = {"name": "poet", "weight": 0.5, "num_tensors": 14, "ranks": [4, 8], "scales": [2.0]}
    assert health["adapters"] == [adapter]
    assert (health["predictor"], health["predictor_left_out"]) == (True, None)
    assert health["draft"] == {"name": "small", "bytes": 1 << 20, "max_context": 4096, "loaded": True}
    heap = {"heap": "VRAM", "planned": 1000, "to_come": 0, "allocated": 1100, "driver": 1200}
    assert health["memory"] == {"heaps": [{**heap, "plan_agrees": True, "driver_agrees": True}], "agrees": True}
    assert health["load"]["tokenizer_s"] == 0.25
    assert health["waits_for"] is None
    assert health["chat_template"] is True
    assert (health["load"]["done"], health["load"]["seconds_left"]) == (True, 0.0)
    assert health["stats"]["tokens_generated"] == 7


async def test_health_is_there_while_the_model_loads(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.loaded.clear()
    engine.bytes_loaded = 25
    async with serve_with(ServerOptions()) as served, httpx.AsyncClient(base_url=served.url) as client:
        response = await client.get("/health")
        assert (response.status_code, response.json()["status"], response.json()["loaded"]) == (200, "loading", 0.25)
        assert response.json()["waits_for"] == "weights"
        load = {name: value for name, value in response.json()["load"].items() if name not in ("tokenizer_s", "done")}
        assert load == {
            "bytes_total": 100,
            "bytes_loaded": 25,
            "bytes_per_s": 50,
            "layers_total": 4,
            "layers_active": 1,
            "seconds": 0.5,
            "seconds_left": 1.5,
            "share": 0.25,
            "from_cache": False,
            "bytes_to_download": 0,
            "bytes_downloaded": 0,
        }
        await engine.fail_load(DeviceLostError("gone"))
        while response.status_code == 200:
            response = await client.get("/health")
        assert (response.json()["status"], response.json()["error"]) == ("error", "gone")


async def test_a_request_waits_for_the_model(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.loaded.clear()
    async with serve_with(ServerOptions()) as served, httpx.AsyncClient(base_url=served.url) as client:
        request = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await engine.called.wait()
        await engine.set_loaded(100)
        assert (await request).json()["choices"][0]["message"]["content"] == "Hello there, friend"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_vanishes_cancels_its_answer(served: Served, engine: FakeEngine, stream: bool) -> None:
    engine.hold[1] = asyncio.Event()
    host, port = served.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"input": "Hi", "stream": stream}).encode()
    writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    await engine.called.wait()
    writer.transport.abort()
    async with asyncio.timeout(120):
        await engine.calls[0].closed.wait()


async def test_a_client_that_stops_reading_is_cut_off(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.script = [Token(index, "x" * 4000) for index in range(20_000)]
    async with serve_with(ServerOptions(send_timeout_s=0.2)) as served:
        host, port = served.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        body = json.dumps(ASK).encode()
        writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        async with asyncio.timeout(120):
            await engine.called.wait()
            await engine.calls[0].closed.wait()
        assert engine.calls[0].given < 20_000
        writer.transport.abort()


async def test_an_engine_that_fails_is_a_server_error(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fail[1] = DeviceLostError("VK_ERROR_DEVICE_LOST")
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/responses", {"input": "Hi"})):
        response = await client.post(path, json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_error")
    streamed = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert '{"error":{"message":"VK_ERROR_DEVICE_LOST"' in streamed.text


BAD_CHATS = [
    ({}, "missing_parameter", "messages"),
    ({"messages": []}, "missing_parameter", "messages"),
    ({"messages": "Hi"}, "invalid_type", "messages"),
    ({**CHAT, "n": 129}, "invalid_value", "n"),
    ({**CHAT, "n": "2"}, "invalid_type", "n"),
    ({**CHAT, "tools": [{"type": "function"}]}, "invalid_type", "tools[0].function"),
    ({**CHAT, "tool_choice": "required"}, "unsupported_value", "tool_choice"),
    ({"messages": [{"role": "user", "content": "x", "foo": 1}]}, "unknown_parameter", "messages[0].foo"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "foo": 1}]}]},
        "unknown_parameter",
        "messages[0].content[0].foo",
    ),
    (
        {**CHAT, "tools": [{"type": "function", "function": {"name": "f", "foo": 1}}]},
        "unknown_parameter",
        "tools[0].function.foo",
    ),
    (
        {**CHAT, "tools": [{"type": "function", "function": {"name": "f"}, "foo": 1}]},
        "unknown_parameter",
        "tools[0].foo",
    ),
    ({**CHAT, "logit_bias": [5]}, "invalid_type", "logit_bias"),
    ({**CHAT, "logit_bias": {"05": 1}}, "invalid_value", "logit_bias"),
    ({**CHAT, "logit_bias": {"9999999999": 1}}, "invalid_value", "logit_bias"),
    ({**CHAT, "logit_bias": {"5": 101}}, "invalid_value", "logit_bias.5"),
    ({**CHAT, "logit_bias": {"5": "1"}}, "invalid_type", "logit_bias.5"),
    ({**CHAT, "logit_bias": {"5": None}}, "invalid_value", "logit_bias.5"),
    ({**CHAT, "logit_bias": {str(token): 1 for token in range(1025)}}, "invalid_value", "logit_bias"),
    ({**CHAT, "min_tokens": -1}, "invalid_value", "min_tokens"),
    ({**CHAT, "min_tokens": 9, "max_tokens": 8}, "invalid_value", "min_tokens"),
    ({**CHAT, "min_tokens": 1000}, "invalid_value", "min_tokens"),
    ({**CHAT, "response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
    ({**CHAT, "response_format": {"type": "json_schema"}}, "invalid_type", "response_format.json_schema"),
    ({**CHAT, "modalities": ["audio"]}, "unsupported_value", "modalities"),
    ({**CHAT, "top_logprobs": 3}, "unsupported_value", "top_logprobs"),
    ({**CHAT, "logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
    ({**CHAT, "stop": ["a", 1]}, "invalid_type", "stop[1]"),
    ({**CHAT, "stop": [""]}, "invalid_value", "stop[0]"),
    ({**CHAT, "stop": ""}, "invalid_value", "stop"),
    ({**CHAT, "stop": ["a"] * 17}, "invalid_value", "stop"),
    ({**CHAT, "seed": 0.5}, "invalid_type", "seed"),
    ({**CHAT, "seed": -2}, "invalid_value", "seed"),
    ({**CHAT, "top_k": -2}, "invalid_value", "top_k"),
    ({**CHAT, "n_predict": 0}, "invalid_value", "n_predict"),
    ({**CHAT, "seed": 1 << 64}, "invalid_value", "seed"),
    ({**CHAT, "top_p": 0}, "invalid_value", "top_p"),
    ({**CHAT, "frequency_penalty": 3}, "invalid_value", "frequency_penalty"),
    ({**CHAT, "max_tokens": -5}, "invalid_value", "max_tokens"),
    ({**CHAT, "stream": "yes"}, "invalid_type", "stream"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "invalid_type", "messages[0].tool_call_id"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "unsupported_value",
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "invalid_type", "messages[0].tool_calls[0].function"),
]


async def test_chat_refusals_name_the_parameter(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    for body, code, param in BAD_CHATS:
        response = await client.post("/v1/chat/completions", json=body)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, code, param), body
    assert engine.calls == []


async def test_fields_that_ask_for_what_is_so_are_taken(client: httpx.AsyncClient) -> None:
    chat = {
        **CHAT,
        "tools": [],
        "tool_choice": "auto",
        "n": 1,
        "temperature": None,
        "response_format": {"type": "text"},
        "model": "fake-model",
    }
    assert (await client.post("/v1/chat/completions", json=chat)).status_code == 200
    responses = {
        "input": [{"type": "reasoning", "summary": []}, {"role": "user", "content": "Hi"}],
        "text": {"format": {"type": "text"}},
        "background": False,
    }
    assert (await client.post("/v1/responses", json=responses)).status_code == 200


BAD_RESPONSES = [
    ({"input": "Hi", "background": True, "store": False}, "background"),
    ({"input": "Hi", "conversation": "conv_1"}, "conversation"),
    ({"input": "Hi", "prompt": {"id": "p"}}, "prompt"),
    ({"input": [{"type": "computer_call", "output": "x"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
]


async def test_responses_refusals_name_the_parameter(client: httpx.AsyncClient) -> None:
    for body, param in BAD_RESPONSES:
        response = await client.post("/v1/responses", json=body)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "unsupported_value", param), body


async def test_bodies_that_are_not_json_objects_are_refused(client: httpx.AsyncClient) -> None:
    for content in (b"", b"{", b"\xff\xff", b"[]", b"null", b"[" * 50_000):
        response = await client.post("/v1/responses", content=content)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


async def test_oversized_and_endless_bodies_are_refused(serve_with: ServeWith) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 100

    options = ServerOptions(max_message_bytes=1000)
    async with serve_with(options) as served, httpx.AsyncClient(base_url=served.url) as client:
        for content in (b"x" * 1001, endless()):
            response = await client.post("/v1/responses", content=content)
            assert (response.status_code, response.json()["error"]["code"]) == (413, "message_too_large")


async def test_a_body_that_does_not_come_is_not_waited_for(serve_with: ServeWith) -> None:
    async with serve_with(ServerOptions(receive_timeout_s=0.05)) as served:
        host, port = served.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()


async def test_cancelling_an_unknown_response_is_not_found(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/responses/resp_nope/cancel")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "response_not_found")


async def test_a_port_in_use_is_named(engine: FakeEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1 port {port}: Address already in use"):
            await serve(engine, port=port)


async def test_a_host_that_is_not_ours_is_named(engine: FakeEngine) -> None:
    with pytest.raises(ConfigError, match=r"203\.0\.113\.1 port 0"):
        await serve(engine, host="203.0.113.1", port=0)


async def test_stopping_the_server_ends_answers_under_way(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    async with serve_with(ServerOptions()) as served:
        host, port = served.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(ASK).encode()
        writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await engine.called.wait()
    assert engine.calls[0].closed.is_set()
    writer.transport.abort()


async def test_the_default_limit_is_the_contexts_room(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.max_context = 5
    engine.script = words("one two three four five six")
    response = (await client.post("/v1/responses", json={"input": "Hi"})).json()
    assert (response["status"], response["usage"]["output_tokens"]) == ("incomplete", 3)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_server_that_ends_answers_a_request_under_way_with_an_error(served: Served, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    async with httpx.AsyncClient(base_url=served.url) as client:
        request = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await engine.called.wait()
        served.task.cancel()
        answer = await request
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_closed")


async def test_a_server_that_is_cancelled_twice_ends_in_order(served: Served) -> None:
    for _ in range(2):
        served.task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait((served.task,))
    assert served.task.cancelled()
    assert "model host" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_what_clients_send_beside_a_messages_text_is_taken(served: Served) -> None:
    text = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}, "foo": None}
    messages = [
        {"role": "user", "content": [text], "name": "me"},
        {
            "role": "assistant",
            "content": "Hello",
            "refusal": None,
            "audio": None,
            "annotations": [],
            "function_call": None,
            "tool_calls": None,
            "reasoning_content": "hm",
            "parsed": None,
            "some_field_to_come": None,
        },
        {"role": "user", "content": "And now?"},
    ]
    async with httpx.AsyncClient(base_url=served.url) as client:
        reply = await client.post("/v1/chat/completions", json={"messages": messages})
        assert reply.status_code == 200, reply.text
        part = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
        said = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]}
        items = [{"role": "user", "content": "Hi"}, {**said, "phase": "final_answer"}, {"role": "user", "content": "?"}]
        reply = await client.post("/v1/responses", json={"input": items})
        assert reply.status_code == 200, reply.text
        tool = {"type": "function", "name": "f", "parameters": {}, "strict": False, "defer_loading": None}
        reply = await client.post("/v1/responses", json={"input": "Hi", "tools": [{**tool, "defer_loading": True}]})
        assert reply.json()["error"]["param"] == "tools[0].defer_loading"


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "identity, br"])
async def test_bodies_that_are_compressed_are_refused_by_the_name_of_the_encoding(
    served: Served, encoding: str
) -> None:
    async with httpx.AsyncClient(base_url=served.url) as client:
        reply = await client.post("/v1/responses", content=gzip.compress(b"{}"), headers={"content-encoding": encoding})
        assert (reply.status_code, reply.json()["error"]["code"]) == (415, "unsupported_encoding")
        assert repr(encoding) in reply.json()["error"]["message"]
        plain = await client.post("/v1/responses", json={"input": "Hi"}, headers={"content-encoding": "identity"})
        assert plain.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1", 404),
        ("GET", "/v1/responses", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/health", 405),
        ("GET", "/health/x", 404),
    ],
)
async def test_paths_that_are_not_there_are_errors_in_json(
    client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == {404: "not_found", 405: "method_not_allowed"}[status]
    assert ("allow" in response.headers) is (status == 405)


async def test_paths_beside_the_api_are_errors_in_text(client: httpx.AsyncClient) -> None:
    response = await client.get("/nothing")
    assert (response.status_code, response.text) == (404, "Not Found")
