"""A conversation becomes a summary that the model writes, and goes on from it; with the official client."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

import unicorn_async
from tests.engine.conftest import device_info, model_directory, open_engine
from tests.server.conftest import serving
from unicorn_async.engine.types import FinishReason, Token
from unicorn_async.server import ServerOptions
from unicorn_async.server.protocol.compaction import MAX_SUMMARY_BYTES, VERSION, compaction_item

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from tests.engine.conftest import OpenEngine
    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine

__all__ = ["device_info", "model_directory", "open_engine"]  # fixtures

DEMO = Path(unicorn_async.__file__).parent / "demo" / "model"
MODEL = "fake-model"
TALK: Any = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
    {"role": "assistant", "content": "four"},
]


@pytest.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


@pytest.fixture
async def plain(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url) as made:
        yield made


def said(engine: FakeEngine) -> list[tuple[str, str]]:
    """The conversation that the model had last."""
    return [(message.role, message.content) for message in engine.fake_tokenizer.conversations[-1]]


AFTER_SUMMARY = [
    ("system", "Be brief."),
    ("user", "one\n\nthree\n\nSummarise our conversation so far."),
    ("assistant", "Hello there, friend"),
    ("user", "five"),
]


async def test_users_messages_are_kept_and_a_summary_stands_for_the_rest(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    compacted = await client.responses.compact(model=MODEL, input=TALK, instructions="Speak English.")
    assert (compacted.object, compacted.id[:5]) == ("response.compaction", "resp_")
    *kept, last = compacted.output
    assert [(item.role, item.content[0].text) for item in kept] == [  # type: ignore[union-attr]
        ("system", "Be brief."),
        ("user", "one"),
        ("user", "three"),
    ]
    assert last.type == "compaction"
    assert "friend" not in last.encrypted_content
    asked = said(engine)
    assert asked[0] == ("system", "Speak English.\n\nBe brief.")
    assert asked[1:5] == [("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four")]
    assert (asked[5][0], "summary" in asked[5][1], len(asked)) == ("user", True, 6)
    (call,) = engine.calls
    assert (call.sampling.temperature, call.sampling.max_tokens) == (0, 250)
    usage = compacted.usage
    assert (usage.input_tokens, usage.output_tokens) == (len(call.prompt), 4)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert call.closed.is_set()


# The client has no type for a message of the user's in an output, and warns of the one that it sends back unchanged.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_a_conversation_goes_on_from_its_summary(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    compacted = await client.responses.compact(model=MODEL, input=TALK)
    asked: Any = [*compacted.output, {"role": "user", "content": "five"}]
    response = await client.responses.create(model=MODEL, input=asked)
    assert said(engine) == AFTER_SUMMARY
    async with client.responses.connect() as connection:
        await connection.response.create(model=MODEL, input=asked)
        async for event in connection:
            assert event.type != "error", event
            if event.type == "response.completed":
                break
    assert said(engine) == AFTER_SUMMARY
    counted = await client.responses.input_tokens.count(model=MODEL, input=asked)
    assert counted.input_tokens == response.usage.input_tokens  # type: ignore[union-attr]
    await client.responses.create(model=MODEL, input="six", previous_response_id=response.id)
    assert said(engine)[:-2] == AFTER_SUMMARY
    listed: list[Any] = [item async for item in client.responses.input_items.list(response.id, order="asc")]
    assert [item.type for item in listed] == ["message", "message", "message", "compaction", "message"]
    assert listed[3].encrypted_content == compacted.output[-1].encrypted_content  # type: ignore[union-attr]


async def test_a_stored_conversation_is_compacted_and_again(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    first = await client.responses.create(model=MODEL, input="one")
    compacted = await client.responses.compact(model=MODEL, previous_response_id=first.id)
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    assert said(engine)[:2] == [("user", "one"), ("assistant", "Hello there, friend")]
    again = await client.responses.compact(model=MODEL, input=[compacted.output[-1]])  # type: ignore[list-item]
    assert [item.type for item in again.output] == ["compaction"]
    assert said(engine)[:2] == [("user", "Summarise our conversation so far."), ("assistant", "Hello there, friend")]


async def test_a_user_who_was_not_answered_yet_is_asked_with_the_instruction(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    await client.responses.compact(model=MODEL, input="one")
    ((role, text),) = said(engine)
    assert (role, text[:5], text.endswith("and nothing else.")) == ("user", "one\n\n", True)


WHOLE = str(compaction_item("cmp_1", "So far nothing.")["encrypted_content"])
LONGEST = str(compaction_item("cmp_1", "x" * MAX_SUMMARY_BYTES)["encrypted_content"])


def with_checksum(body: str) -> str:
    """A content that is whole, whatever its body is."""
    return f"{VERSION}.{hashlib.sha256(body.encode()).hexdigest()[:16]}.{body}"


@pytest.mark.parametrize(
    "content",
    [
        "gAAAAABo4k",
        VERSION,
        f"{VERSION}.é.é",
        WHOLE[:-4],
        WHOLE.replace("U28", "Uz8"),
        with_checksum(""),
        with_checksum("_w=="),
        with_checksum("U28\n"),
        LONGEST + "xxxx",
        "x" * 400_000,
        None,
        5,
    ],
)
async def test_what_no_server_of_ours_has_made_is_refused_by_name(
    plain: httpx.AsyncClient, engine: FakeEngine, content: object
) -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": content}
    for path in ("/v1/responses", "/v1/responses/compact"):
        response = await plain.post(path, json={"input": [item]})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "input[0].encrypted_content")
    assert engine.calls == []


async def test_what_is_not_done_is_refused_by_name(plain: httpx.AsyncClient) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "input"),
        ({"instructions": "x"}, "input"),
        ({"input": "x", "image": {"context_compression": "auto"}}, "image"),
        ({"input": "x", "stream": True}, "stream"),
        ({"input": "x", "max_output_tokens": 5}, "max_output_tokens"),
        ({"input": "x", "previous_response_id": "resp_none"}, "previous_response_id"),
        ({"input": [{"type": "compaction", "encrypted_content": WHOLE, "summary": "x"}]}, "input[0].summary"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
    ]
    for body, param in cases:
        response = await plain.post("/v1/responses/compact", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    chat = {"messages": [{"role": "summary", "content": "x"}]}
    assert (await plain.post("/v1/chat/completions", json=chat)).json()["error"]["param"] == "messages[0].role"


async def test_the_oldest_turns_go_where_a_full_context_leaves_no_room(
    plain: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await plain.post("/v1/responses/compact", json={"input": "x"})
    instruction = len(engine.calls[0].prompt) - 2
    engine.max_context = 4 * instruction
    turn = [{"role": "user", "content": "a " * instruction}, {"role": "assistant", "content": "b"}]
    body = {"input": [*turn, *turn]}
    compacted = await plain.post("/v1/responses/compact", json=body)
    assert [item["type"] for item in compacted.json()["output"]] == ["message", "message", "compaction"]
    assert len(engine.calls[-1].prompt) == 2 * instruction + 4
    assert engine.calls[-1].sampling.max_tokens == instruction
    alone = await plain.post("/v1/responses/compact", json={"input": "a " * (3 * instruction)})
    longer = await plain.post("/v1/responses/compact", json={"input": [*turn, *turn, *turn, *turn]})
    for refused in (alone, longer):
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert len(engine.calls) == 2


async def test_a_client_that_goes_ends_the_summary(served: Served, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    async with httpx.AsyncClient(base_url=served.url) as client:
        asking = asyncio.create_task(client.post("/v1/responses/compact", json={"input": "x"}))
        await engine.called.wait()
        asking.cancel()
        await asyncio.wait((asking,))
    await engine.calls[0].closed.wait()


async def test_it_counts_as_one_of_the_clients_requests(
    engine: FakeEngine, serve_with: Callable[[ServerOptions], AbstractAsyncContextManager[Served]]
) -> None:
    engine.hold[1] = asyncio.Event()
    async with (
        serve_with(ServerOptions(max_client_requests=1)) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        asking = asyncio.create_task(client.post("/v1/responses/compact", json={"input": "x"}))
        await engine.called.wait()
        refused = await client.post("/v1/responses/compact", json={"input": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_requests")
        engine.hold[1].set()
        assert (await asking).status_code == 200


@pytest.mark.parametrize("switch", [True, False])
async def test_thoughts_are_switched_off_or_left_out(
    client: openai.AsyncOpenAI, engine: FakeEngine, switch: bool
) -> None:
    engine.fake_tokenizer.thinks = True
    engine.fake_tokenizer.template_names = frozenset({"enable_thinking"} if switch else ())
    engine.script = [Token(number, text) for number, text in enumerate(["<think>", "Hm", "</think>", "So", " far"])]
    compacted = await client.responses.compact(model=MODEL, input="x")
    assert engine.fake_tokenizer.options[-1]["variables"] == ({"enable_thinking": False} if switch else {})
    assert compacted.output[-1].encrypted_content == compaction_item("", "So far")["encrypted_content"]  # type: ignore[union-attr]
    assert compacted.usage.output_tokens_details.reasoning_tokens == 3


async def test_a_model_that_writes_nothing_is_an_error_of_ours(plain: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.script = [Token(0, " "), Token(99, "", finish_reason=FinishReason.LENGTH)]
    response = await plain.post("/v1/responses/compact", json={"input": "x"})
    assert (response.status_code, response.json()["error"]["code"]) == (500, "no_summary")
    engine.fail[0] = RuntimeError("/srv/secret")
    response = await plain.post("/v1/responses/compact", json={"input": "x"})
    assert (response.status_code, "/srv" in response.text) == (500, False)


async def test_the_demo_model_summarises_and_goes_on(open_engine: OpenEngine) -> None:
    async with (
        open_engine(DEMO, model_name="demo") as engine,
        serving(engine) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        compacted = await client.responses.compact(model="demo", input="What is 17 + 25?")
        assert compacted.usage.output_tokens > 0
        item: Any = compacted.output[-1].model_dump()
        response = await client.responses.create(
            model="demo", input=[item, {"role": "user", "content": "What is 17 + 25?"}], max_output_tokens=8
        )
        assert response.usage is not None
        assert response.usage.input_tokens > compacted.usage.output_tokens
