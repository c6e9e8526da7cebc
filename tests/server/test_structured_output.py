"""Answers in a wanted form: the official client, unmodified, against the demo model."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx
import jsonschema
import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel, Field

import unicorn_async
from tests.engine.conftest import device_info, model_directory, open_engine
from tests.guidance.schemas import SCHEMAS
from tests.server.conftest import serving
from tests.server.fake_engine import words
from tests.server.ws_client import connected
from unicorn_async.errors import GrammarBusyError, GrammarError, GrammarLostError
from unicorn_async.grammar import Grammar, GrammarKind
from unicorn_async.server import ServerOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from tests.engine.conftest import OpenEngine
    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine

__all__ = ["device_info", "model_directory", "open_engine"]  # fixtures

DEMO = Path(unicorn_async.__file__).parent / "demo" / "model"
in_the_demo_s_loop = pytest.mark.asyncio(loop_scope="module")
CHAT = [{"role": "user", "content": "Which day comes after Monday?"}]


class Step(BaseModel):
    explanation: str = Field(max_length=20)
    is_last: bool


class Plan(BaseModel):
    title: Literal["first", "second"]
    steps: list[Step] = Field(min_length=1, max_length=2)
    rating: int | None = Field(ge=0, le=10)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo(open_engine: OpenEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    """The demo model, served to all tests that only ask it."""
    async with (
        open_engine(DEMO, model_name="demo") as engine,
        serving(engine) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        yield client


@in_the_demo_s_loop
async def test_responses_are_parsed(demo: openai.AsyncOpenAI, seeds: range) -> None:
    for seed in seeds:
        response = await demo.responses.parse(
            model="demo", input="Hi", text_format=Plan, temperature=1.0, extra_body={"seed": seed}
        )
        assert response.output_parsed is not None
        assert response.output_parsed.title in ("first", "second")
        assert response.text is not None and response.text.format is not None
        assert response.text.format.type == "json_schema"


@in_the_demo_s_loop
async def test_chat_completions_are_parsed(demo: openai.AsyncOpenAI) -> None:
    completion = await demo.chat.completions.parse(model="demo", messages=CHAT, response_format=Plan, temperature=1.0)  # type: ignore[arg-type]
    parsed = completion.choices[0].message.parsed
    assert parsed is not None
    assert 1 <= len(parsed.steps) <= 2


@in_the_demo_s_loop
async def test_a_stream_of_chat_chunks_is_parsed(demo: openai.AsyncOpenAI) -> None:
    async with demo.chat.completions.stream(model="demo", messages=CHAT, response_format=Plan) as stream:  # type: ignore[arg-type]
        async for _ in stream:
            pass
        completion = await stream.get_final_completion()
    assert completion.choices[0].message.parsed is not None


@in_the_demo_s_loop
async def test_a_response_over_the_websocket_has_the_form(demo: openai.AsyncOpenAI) -> None:
    schema = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 3}
    async with demo.responses.connect() as connection:
        await connection.response.create(
            model="demo", input="Hi", text={"format": {"type": "json_schema", "name": "list", "schema": schema}}
        )
        async for event in connection:
            assert event.type != "error", event
            if event.type == "response.completed":
                jsonschema.validate(json.loads(event.response.output_text), schema)
                break


@in_the_demo_s_loop
@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"text": {"format": {"type": "grammar", "syntax": "regex", "definition": "[ab]{3}"}}}, "[ab]{3}"),
        ({"text": {"format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x" /[0-9]/'}}}, "x[0-9]"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"structured_outputs": {"regex": "[0-9]{4}"}}, "[0-9]{4}"),
        ({"structured_outputs": {"grammar": 'start: "<" /[a-z]{2}/ ">"'}}, "<[a-z]{2}>"),
        ({"structured_outputs": {"json": {"type": "boolean"}}}, "true|false"),
        ({"structured_outputs": {"json": '{"const": 5}'}}, "5"),
    ],
)
async def test_other_forms_than_json(demo: openai.AsyncOpenAI, extra: dict[str, Any], pattern: str) -> None:
    response = await demo.responses.create(model="demo", input="Hi", temperature=1.0, extra_body=extra)
    assert re.fullmatch(pattern, response.output_text)
    if "structured_outputs" in extra:
        completion = await demo.chat.completions.create(model="demo", messages=CHAT, extra_body=extra)  # type: ignore[arg-type]
        assert re.fullmatch(pattern, completion.choices[0].message.content or "")
        text = await demo.completions.create(model="demo", prompt="Hi", extra_body=extra)
        assert re.fullmatch(pattern, text.choices[0].text)


@in_the_demo_s_loop
async def test_texts_are_continued_in_a_wanted_form(demo: openai.AsyncOpenAI) -> None:
    schema = {"enum": ["a", "b"]}
    wanted = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    completion = await demo.completions.create(model="demo", prompt=["Hi", "Ho"], n=2, extra_body=wanted)
    assert {choice.text for choice in completion.choices} <= {'"a"', '"b"'}
    refusable = {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}, "strict": True}}}
    with pytest.raises(openai.BadRequestError) as refused:
        await demo.completions.create(model="demo", prompt="Hi", extra_body=refusable)
    assert refused.value.param == "response_format.json_schema.schema"


@in_the_demo_s_loop
async def test_json_objects(demo: openai.AsyncOpenAI) -> None:
    completion = await demo.chat.completions.create(
        model="demo",
        messages=CHAT,  # type: ignore[arg-type]
        response_format={"type": "json_object"},
        temperature=1.0,
        seed=4,
        max_tokens=200,
    )
    content = completion.choices[0].message.content or ""
    assert content.startswith("{")
    if completion.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(content), dict)


@in_the_demo_s_loop
async def test_an_answer_that_is_cut_off_is_incomplete(demo: openai.AsyncOpenAI) -> None:
    response = await demo.responses.create(
        model="demo",
        input="Hi",
        max_output_tokens=3,
        text={"format": {"type": "json_schema", "name": "long", "schema": {"type": "string", "minLength": 50}}},
    )
    assert response.status == "incomplete"
    assert response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.whole("an answer to each kind of schema; those of a grammar's own tests are not drawn by a model")
@in_the_demo_s_loop
async def test_all_kinds_of_schemas_have_valid_answers(demo: openai.AsyncOpenAI) -> None:
    num_ended = 0
    for name, schema in SCHEMAS.items():
        if not isinstance(schema, dict):
            continue
        response = await demo.responses.create(
            model="demo",
            input="Hi",
            temperature=1.0,
            max_output_tokens=200,
            text={"format": {"type": "json_schema", "name": "any", "schema": schema, "strict": True}},
        )
        if response.status == "completed":
            num_ended += 1
            jsonschema.validate(json.loads(response.output_text), schema, format_checker=jsonschema.FormatChecker())
        else:
            assert response.incomplete_details is not None, name
    assert num_ended > len(SCHEMAS) * 0.8


@in_the_demo_s_loop
async def test_schemas_that_cant_be_used_are_refused_before_anything_begins(demo: openai.AsyncOpenAI) -> None:
    for schema, reason in (
        ({"type": "strin"}, "strin"),
        ({"not": {}}, "not"),
        ({"type": "string", "pattern": "("}, "regex"),
    ):
        wanted: Any = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
        with pytest.raises(openai.BadRequestError, match=reason) as caught:
            await demo.responses.create(model="demo", input="Hi", text={"format": wanted}, stream=True)
        assert (caught.value.code, caught.value.param) == ("invalid_json_schema", "text.format.schema")
        with pytest.raises(openai.BadRequestError, match=reason) as caught:
            await demo.chat.completions.create(
                model="demo",
                messages=CHAT,  # type: ignore[arg-type]
                response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
            )
        assert caught.value.param == "response_format.json_schema.schema"


REFUSED = [
    ({"text": {"format": {"type": "json_schema", "schema": {}, "name": "a b"}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "schema": [], "name": "a"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "schema": {}, "strict": 1}}}, "text.format.strict"),
    ({"text": {"format": {"type": "grammar", "syntax": "bnf", "definition": "a"}}}, "text.format.syntax"),
    ({"text": {"format": {"type": "grammar", "syntax": "lark"}}}, "text.format.definition"),
    ({"text": {"format": {"type": "grammar", "syntax": "regex", "definition": ""}}}, "text.format.definition"),
    ({"text": {"format": {"type": "json_schema", "schema": {}, "name": "a", "foo": 1}}}, "text.format.foo"),
    ({"text": {"format": {"type": "text", "json_schema": {}}}}, "text.format.json_schema"),
    ({"text": {"format": {"schema": {}}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_object", "json_schema": {}}}}, "text.format.json_schema"),
    (
        {"text": {"format": {"type": "grammar", "syntax": "regex", "definition": "a", "flags": "i"}}},
        "text.format.flags",
    ),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ({"structured_outputs": {"choice": ["a", 5]}}, "structured_outputs.choice[1]"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"json": 5}}, "structured_outputs.json"),
    ({"structured_outputs": {"bnf": "a"}}, "structured_outputs.bnf"),
    ({"structured_outputs": {"regex": "a" * 200_000}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}}, "structured_outputs"),
]


@pytest.mark.parametrize(("extra", "param"), REFUSED)
async def test_refusals_name_the_field(served: Served, engine: FakeEngine, extra: dict[str, Any], param: str) -> None:
    async with httpx.AsyncClient(base_url=served.url) as client:
        answer = await client.post("/v1/responses", json={"input": "Hi", **extra})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert param in answer.json()["error"]["message"]
    assert not engine.calls


CHAT_REFUSED = [
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}, "foo": 1}}, "response_format.foo"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "foo": 1}}},
        "response_format.json_schema.foo",
    ),
    ({"response_format": {"json_schema": {"schema": {}}}}, "response_format.json_schema"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}, "foo": 1}}, "tool_choice.foo"),
    ({"tool_choice": {"type": "function", "function": {"name": "f", "foo": 1}}}, "tool_choice.function.foo"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"foo": 1}}}, "tool_choice.allowed_tools.foo"),
]


@pytest.mark.parametrize(("extra", "param"), CHAT_REFUSED)
async def test_unknown_keys_of_chat_are_refused(served: Served, extra: dict[str, Any], param: str) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with httpx.AsyncClient(base_url=served.url) as client:
        answer = await client.post("/v1/chat/completions", json={"messages": CHAT, "tools": tools, **extra})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_an_object_may_have_a_schema_and_the_answer_says_how_it_was_served(
    served: Served, engine: FakeEngine
) -> None:
    wanted = {"type": "json_object", "schema": {"type": "object", "maxProperties": 1}}
    body = {"messages": CHAT, "response_format": wanted, "service_tier": "flex"}
    async with httpx.AsyncClient(base_url=served.url) as client:
        answer = await client.post("/v1/chat/completions", json=body)
        chunks = await client.post("/v1/chat/completions", json={**body, "stream": True})
    assert engine.calls[0].sampling.grammar == Grammar.json_schema(wanted["schema"], strict=False)  # type: ignore[arg-type]
    assert answer.json()["service_tier"] == "default"
    assert chunks.text.count('"service_tier":"default"') == chunks.text.count('"object":"chat.completion.chunk"') > 1


TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
CHOICE = {"structured_outputs": {"choice": ["a", "b"]}}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("responses", {"input": "Hi", **CHOICE}, "structured_outputs.choice"),
        ("responses", {"input": "Hi", "tools": [TOOL], "tool_choice": "required"}, "tools"),
        (
            "chat/completions",
            {"messages": CHAT, "response_format": {"type": "json_object"}},
            "response_format.type",
        ),
    ],
)
async def test_a_dead_end_amid_an_answer_names_the_field(
    served: Served, engine: FakeEngine, path: str, body: dict[str, Any], param: str
) -> None:
    engine.fail[1] = GrammarError("nothing can follow here")
    async with httpx.AsyncClient(base_url=f"{served.url}/v1/") as client:
        refused = await client.post(path, json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["message"]) == (400, param, f"{param}: nothing can follow here")


async def test_the_grammar_is_among_the_sampling_parameters(served: Served, engine: FakeEngine) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}
    async with httpx.AsyncClient(base_url=served.url) as client:
        answer = await client.post("/v1/chat/completions", json={"messages": CHAT, "response_format": wanted})
        assert answer.status_code == 200
        grammar = engine.calls[0].sampling.grammar
        assert grammar == Grammar(GrammarKind.JSON_SCHEMA, '{"type": "null"}', strict=False)
        assert engine.grammars == [grammar]
        engine.refused_grammar = GrammarError("too large")
        refused = await client.post("/v1/responses", json={"input": "Hi", "structured_outputs": {"choice": ["a"]}})
        assert refused.json()["error"]["param"] == "structured_outputs.choice"
        engine.refused_grammar = GrammarLostError("the process has ended")
        refused = await client.post("/v1/responses", json={"input": "Hi", "structured_outputs": {"choice": ["a"]}})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "grammar_lost")
        assert refused.headers["retry-after"] == "1"
        engine.refused_grammar = GrammarBusyError("no turn")
        refused = await client.post("/v1/responses", json={"input": "Hi", "structured_outputs": {"choice": ["a"]}})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "grammar_busy")
        assert refused.headers["retry-after"] == "10"
    assert set(engine.grammar_clients) == {"127.0.0.1"}  # who takes turns


async def test_an_answer_in_a_form_is_no_thought_wherever_the_prompt_ends(served: Served, engine: FakeEngine) -> None:
    engine.fake_tokenizer.thinks = True
    engine.fake_tokenizer.pieces = {1: b"<think>"}
    engine.script = words('{"a": 1}')
    async with httpx.AsyncClient(base_url=served.url) as client:
        body = {"input": "Hi", "text": {"format": {"type": "json_object"}}}
        formed = (await client.post("/v1/responses", json=body)).json()
        free = (await client.post("/v1/responses", json={"input": "Hi"})).json()
        chat = {"messages": [{"role": "user", "content": "Hi"}], "response_format": {"type": "json_object"}}
        choice = (await client.post("/v1/chat/completions", json=chat)).json()["choices"][0]
    assert [item["type"] for item in formed["output"]] == ["message"]
    assert formed["output"][0]["content"][0]["text"] == choice["message"]["content"] == '{"a": 1}'
    assert free["output"][0]["type"] == "reasoning"


@pytest.mark.parametrize("strict", [True, False])
async def test_objects_of_strict_schemas_have_the_properties_that_these_name(
    served: Served, engine: FakeEngine, strict: bool
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {}}}}}
    wanted = {"type": "json_schema", "name": "x", "schema": schema, "strict": strict}
    async with httpx.AsyncClient(base_url=served.url) as client:
        response = (await client.post("/v1/responses", json={"input": "Hi", "text": {"format": wanted}})).json()
    assert response["text"]["format"]["schema"] == schema
    grammar = engine.calls[0].sampling.grammar
    assert grammar is not None
    found = json.loads(grammar.source)
    closed = [part.get("additionalProperties") is False for part in (found, found["properties"]["a"])]
    assert closed == [strict, strict]


async def test_a_server_that_ends_tells_those_who_wait_for_a_grammar(
    serve_with: Callable[[ServerOptions], AbstractAsyncContextManager[Served]], engine: FakeEngine
) -> None:
    engine.compiling = asyncio.Event()
    form, name = {"structured_outputs": {"regex": "[0-9]{9}"}}, f"resp_{'c' * 32}"
    response = {"input": "Hi", **form}
    chat = {"messages": [{"role": "user", "content": "Hi"}], **form}
    named = {**response, "background": True, "response_id": name}
    asked = [
        ("/v1/responses", response),
        ("/v1/responses", {**response, "stream": True}),
        ("/v1/chat/completions", {**chat, "stream": True}),
        ("/v1/completions", {"prompt": "Hi", **form}),
        ("/v1/responses", named),
    ]
    async with (
        asyncio.timeout(120),
        serve_with(ServerOptions(shutdown_timeout_s=60)) as served,
        httpx.AsyncClient(base_url=served.url, timeout=120) as client,
        connected(served.ws_url) as socket,
    ):
        posts = [asyncio.create_task(client.post(path, json=body)) for path, body in asked]
        await socket.create("Hi", **form)
        await socket.create("Hi")
        await socket.send({"type": "response.cancel", "response_id": "resp_none"})
        assert (await socket.receive())["status"] == 404  # so all before it are in their stream
        while len(engine.grammars) <= len(asked):
            assert (await client.get("/ready")).status_code == 200
        served.task.cancel()
        answers = [(answer.status_code, answer.json()) for answer in [await post for post in posts]]
        events = [await socket.receive() for _ in range(2)]
    for status, told in [*answers, *[(event["status"], event) for event in events]]:
        assert (status, told["error"]["code"]) == (503, "engine_closed")
        assert "shutting down" in told["error"]["message"]
