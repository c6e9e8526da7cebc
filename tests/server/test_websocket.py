from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from websockets.exceptions import ConnectionClosed

from tests.server.fake_engine import words
from tests.server.ws_client import connected, text_of
from unicorn_async.engine.types import Token
from unicorn_async.errors import DeviceLostError, QueueFullError, TokenizerError
from unicorn_async.server import ServerOptions

if TYPE_CHECKING:
    from tests.server.conftest import Served, ServeWith
    from tests.server.fake_engine import FakeEngine


async def test_several_answers_follow_each_other_on_one_connection(served: Served) -> None:
    async with connected(served.ws_url) as client:
        for _ in range(3):
            await client.create()
            events = await client.answer()
            assert events[-1]["type"] == "response.completed"
            assert text_of(events) == "Hello there, friend"
            assert "stream_id" not in events[0]


async def test_a_stream_is_first_in_first_out_and_streams_run_side_by_side(served: Served, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    async with connected(served.ws_url) as client:
        await client.create("one", stream_id="a")
        await client.create("two two", stream_id="a")
        await client.create("three three three", stream_id="b")
        started = [event["stream_id"] for event in await client.until("response.output_text.delta")]
        started += [event["stream_id"] for event in await client.until("response.output_text.delta")]
        assert set(started) == {"a", "b"}
        assert sorted(len(call.prompt) for call in engine.calls) == [2, 4]
        engine.hold[1].set()
        ends = [(await client.until("response.completed"))[-1] for _ in range(3)]
    in_a = [end["response"]["usage"]["input_tokens"] for end in ends if end["stream_id"] == "a"]
    assert in_a == [2, 3]


async def test_a_full_stream_and_too_many_streams_are_refused(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.hold[0] = asyncio.Event()
    async with serve_with(ServerOptions(max_queued=1, max_channels=1)) as served, connected(served.ws_url) as client:
        await client.create()
        await client.until("response.in_progress")
        await client.create()
        await client.create()
        refused = await client.receive()
        assert (refused["type"], refused["status"], refused["error"]["code"]) == ("error", 429, "stream_full")
        await client.create(stream_id="other")
        refused = await client.receive()
        assert (refused["error"]["code"], refused["stream_id"]) == ("too_many_streams", "other")
        engine.hold[0].set()
        assert (await client.answer())[-1]["type"] == "response.completed"
        assert (await client.answer())[-1]["type"] == "response.completed"


@pytest.mark.parametrize("by", ["response_id", "stream_id"])
async def test_cancel_ends_the_answer_with_what_it_has(served: Served, engine: FakeEngine, by: str) -> None:
    engine.hold[1] = asyncio.Event()
    async with connected(served.ws_url) as client:
        await client.create(stream_id="x")
        events = await client.until("response.output_text.delta")
        key = events[0]["response"]["id"] if by == "response_id" else "x"
        await client.send({"type": "response.cancel", by: key})
        events = await client.answer()
        assert events[-1]["type"] == "response.incomplete"
        assert events[-1]["response"]["status"] == "cancelled"
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello"
        assert engine.calls[0].closed.is_set()
        await client.send({"type": "response.cancel", by: key})
        assert (await client.receive())["error"]["code"] == "response_not_found"


async def test_cancel_before_the_first_token(served: Served, engine: FakeEngine) -> None:
    engine.hold[0] = asyncio.Event()
    async with connected(served.ws_url) as client:
        await client.create()
        await client.send({"type": "response.cancel"})
        events = await client.answer()
        assert [event["type"] for event in events] == [
            "response.created",
            "response.in_progress",
            "response.incomplete",
        ]
        assert events[-1]["response"]["usage"]["output_tokens"] == 0
        engine.hold.clear()
        await client.create()
        assert text_of(await client.answer()) == "Hello there, friend"


async def test_a_client_that_vanishes_cancels_everything_it_asked_for(served: Served, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    async with connected(served.ws_url) as client:
        await client.create(stream_id="a")
        await client.create(stream_id="b")
        await client.until("response.output_text.delta")
        await client.until("response.output_text.delta")
        client.socket.transport.abort()
    async with asyncio.timeout(120):
        for call in engine.calls:
            await call.closed.wait()


async def test_a_client_that_stops_reading_is_cut_off_and_its_answer_cancelled(
    serve_with: ServeWith, engine: FakeEngine
) -> None:
    engine.script = [Token(index, "x" * 4000) for index in range(20_000)]
    async with serve_with(ServerOptions(send_timeout_s=0.2)) as served:
        async with connected(served.ws_url, max_queue=1) as client:
            client.socket.transport.pause_reading()
            await client.create()
            async with asyncio.timeout(120):
                await engine.called.wait()
                await engine.calls[0].closed.wait()
            assert engine.calls[0].given < 20_000
            client.socket.transport.abort()
        async with connected(served.ws_url) as client:
            engine.script = words("still here")
            await client.create()
            assert text_of(await client.answer()) == "still here"


async def test_signs_of_life_come_while_no_token_does(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.loaded.clear()
    async with serve_with(ServerOptions(keepalive_s=0.02)) as served, connected(served.ws_url) as client:
        await client.create()
        kinds = [(await client.receive())["type"] for _ in range(5)]
        assert kinds == ["response.created"] + ["response.in_progress"] * 4
        await engine.set_loaded(100)
        events = await client.answer()
        assert text_of(events) == "Hello there, friend"


async def test_load_progress_comes_only_to_those_who_asked(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.loaded.clear()
    async with (
        serve_with(ServerOptions()) as served,
        connected(f"{served.ws_url}?events=unicorn") as asked,
        connected(served.ws_url) as other,
    ):
        first = (await asked.until("unicorn.load.progress"))[-1]
        assert (first["model"], first["share"], first["done"]) == ("fake-model", 0.0, False)
        assert (first["bytes_per_s"], first["seconds_left"]) == (None, None)  # nothing has come
        await engine.set_loaded(25)
        event = await asked.receive()
        assert (event["bytes_loaded"], event["bytes_per_s"], event["seconds_left"]) == (25, 50, 1.5)
        await engine.set_loaded(100)
        last = await asked.receive()
        assert (last["share"], last["layers_active"], last["done"]) == (1.0, 4, True)
        model = await asked.receive()
        assert (model["type"], model["model"], model["status"]) == ("unicorn.model", "fake-model", "ready")
        await other.create()
        assert (await other.receive())["type"] == "response.created"


async def test_how_far_a_prompt_followed_the_load_is_told_to_who_asked_it(
    serve_with: ServeWith, engine: FakeEngine
) -> None:
    engine.loaded.clear()
    async with (
        serve_with(ServerOptions()) as served,
        connected(f"{served.ws_url}?events=unicorn") as client,
        connected(f"{served.ws_url}?events=unicorn") as other,
    ):
        assert (await client.until("unicorn.load.progress"))[-1]["prompts"] == {}
        await other.until("unicorn.load.progress")
        await client.create()
        response_id = (await client.until("response.created"))[-1]["response"]["id"]
        await engine.called.wait()
        assert engine.calls[0].request_id == response_id
        engine.prompts = {response_id: 3, "another": 1}
        await engine.set_loaded(25)
        assert (await client.until("unicorn.load.progress"))[-1]["prompts"] == {response_id: 3}
        assert (await other.until("unicorn.load.progress"))[-1]["prompts"] == {}


async def test_a_failed_load_is_told(serve_with: ServeWith, engine: FakeEngine) -> None:
    engine.loaded.clear()
    async with serve_with(ServerOptions()) as served, connected(f"{served.ws_url}?events=unicorn") as client:
        await client.until("unicorn.load.progress")
        await engine.fail_load(DeviceLostError("the device is gone"))
        event = (await client.until("unicorn.load.failed"))[-1]
        assert event["error"]["message"] == "the device is gone"


async def test_generate_false_prepares_a_response_to_go_on_from(served: Served, engine: FakeEngine) -> None:
    async with connected(served.ws_url) as client:
        await client.create("Remember this", generate=False)
        events = await client.answer()
        assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]
        assert engine.calls == []
        await client.create("Now answer", previous_response_id=events[-1]["response"]["id"])
        assert text_of(await client.answer()) == "Hello there, friend"
        said = [message.content for message in engine.fake_tokenizer.conversations[-1]]
        assert said == ["Remember this", "Now answer"]


async def test_an_unstored_response_is_known_on_its_connection_alone(served: Served) -> None:
    async with connected(served.ws_url) as client, connected(served.ws_url) as other:
        await client.create(store=False)
        response_id = (await client.answer())[-1]["response"]["id"]
        await other.create(previous_response_id=response_id)
        error = await other.receive()
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
        assert error["error"]["param"] == "previous_response_id"


async def test_an_engine_that_fails_mid_answer_ends_it_as_failed(served: Served, engine: FakeEngine) -> None:
    engine.fail[2] = DeviceLostError("VK_ERROR_DEVICE_LOST")
    async with connected(served.ws_url) as client:
        await client.create()
        last = (await client.answer())[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"] == {"code": "server_error", "message": "VK_ERROR_DEVICE_LOST"}
        assert last["response"]["output"][0]["content"][0]["text"] == "Hello there,"


async def test_an_unforeseen_error_tells_nothing_of_the_inside(served: Served, engine: FakeEngine) -> None:
    engine.fail[1] = ZeroDivisionError("secret")
    async with connected(served.ws_url) as client:
        await client.create()
        last = (await client.answer())[-1]
        assert last["type"] == "response.failed"
        assert "secret" not in json.dumps(last)
        del engine.fail[1]
        await client.create()
        assert (await client.answer())[-1]["type"] == "response.completed"


async def test_a_refusal_by_the_engine_is_an_error_event_of_its_stream(served: Served, engine: FakeEngine) -> None:
    engine.refuse = QueueFullError("256 requests wait already")
    async with connected(served.ws_url) as client:
        await client.create(stream_id="x")
        event = await client.receive()
        assert (event["type"], event["status"], event["stream_id"]) == ("error", 429, "x")
        assert event["error"]["type"] == "rate_limit_error"


async def test_a_template_that_refuses_the_roles_is_the_clients_error(
    served: Served, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> list[int]:
        raise TokenizerError("roles must alternate")

    monkeypatch.setattr(engine.fake_tokenizer, "encode_chat", refuse)
    async with connected(served.ws_url) as client:
        await client.create()
        assert (await client.receive())["status"] == 400


async def test_a_long_conversation_is_tokenised_off_the_loop(served: Served, engine: FakeEngine) -> None:
    engine.max_context = 100_000
    async with connected(served.ws_url) as client:
        await client.create("word " * 10_000)
        assert (await client.answer())[-1]["response"]["usage"]["input_tokens"] == 10_001


HOSTILE = [
    ("{", "invalid_json", None),
    ("", "invalid_json", None),
    ("[1, 2]", "invalid_json", None),
    ("[" * 60_000, "invalid_json", None),
    ('{"type": "response.create", "input": "x", "temperature": NaN}', "invalid_json", None),
    ('{"type": "response.create", "input": "x", "temperature": 1e999}', "invalid_value", "temperature"),
    ('{"type": "response.create", "input": "x", "temperature": "hot"}', "invalid_type", "temperature"),
    ('{"type": "response.create", "input": "x", "temperature": -1}', "invalid_value", "temperature"),
    ('{"type": "response.create", "input": "x", "max_output_tokens": 0}', "invalid_value", "max_output_tokens"),
    ('{"type": "response.create", "input": "x", "max_output_tokens": true}', "invalid_type", "max_output_tokens"),
    ('{"type": "response.create", "input": "\\ud800"}', "invalid_value", "input"),
    ('{"type": "response.create", "input": 3}', "invalid_type", "input"),
    ('{"type": "response.create"}', "missing_parameter", "input"),
    ('{"type": "response.create", "input": [3]}', "invalid_type", "input[0]"),
    ('{"type": "response.create", "input": [{"role": "king", "content": "x"}]}', "invalid_value", "input[0].role"),
    ('{"type": "response.create", "input": [{"role": "user"}]}', "invalid_type", "input[0].content"),
    ('{"type": "response.create", "input": "x", "stream_id": 7}', "invalid_type", "stream_id"),
    ('{"type": "response.create", "input": "x", "tools": [{"type": "function"}]}', "invalid_value", "tools[0].name"),
    ('{"type": "response.create", "input": "x", "colour": "red"}', "unknown_parameter", "colour"),
    ('{"type": "response.steer"}', "unknown_event", "type"),
    ('{"type": 5}', "invalid_type", "type"),
    ('{"input": "x"}', "missing_parameter", "type"),
    ('{"type": "response.cancel"}', "response_not_found", "response_id"),
    ('{"type": "response.cancel", "foo": 5}', "unknown_parameter", "foo"),
    ('{"type": "unicorn.watch", "interval_ms": 0, "stream_id": "a"}', "unknown_parameter", "stream_id"),
    ('{"type": "unicorn.auth", "key": "a", "user": "b"}', "unknown_parameter", "user"),
    ('{"type": "unicorn.resume", "response_id": "a", "stream": true}', "unknown_parameter", "stream"),
    ('{"type": "response.create", "input": "a", "stream": false}', "unsupported_value", "stream"),
]


async def test_bad_messages_are_told_apart_and_the_connection_goes_on(served: Served) -> None:
    async with connected(served.ws_url) as client:
        for text, code, param in HOSTILE:
            await client.socket.send(text)
            event = await client.receive()
            assert (event["type"], event["error"]["code"], event["error"]["param"]) == ("error", code, param), text[:80]
        await client.socket.send(b"\xff\xfe\x00")
        assert (await client.receive())["error"]["code"] == "invalid_json"
        await client.create()
        assert (await client.answer())[-1]["type"] == "response.completed"


async def test_an_oversized_message_closes_its_connection_alone(serve_with: ServeWith) -> None:
    async with serve_with(ServerOptions(max_message_bytes=1000)) as served:
        async with connected(served.ws_url) as client:
            await client.create("x" * 2000)
            with pytest.raises(ConnectionClosed) as caught:
                await client.receive()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1009
        async with connected(served.ws_url) as client:
            await client.create()
            assert (await client.answer())[-1]["type"] == "response.completed"


async def test_a_server_that_ends_tells_the_clients_of_answers_under_way(served: Served, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    async with connected(served.ws_url) as client:
        await client.create()
        await client.until("response.output_text.delta")
        served.task.cancel()
        last = (await client.answer())[-1]
        assert last["type"] == "response.failed"
        assert "shutting down" in last["response"]["error"]["message"]
        with pytest.raises(ConnectionClosed):
            await client.receive()
    assert engine.calls[0].closed.is_set()
