"""Nothing that a request says is ignored in silence: it is done, told again, or refused by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import httpx

    from tests.server.fake_engine import FakeEngine

ASK = {"input": "Hi"}
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
ECHOED = {
    "max_tool_calls": 3,
    "parallel_tool_calls": False,
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "user": "me",
    "truncation": "auto",
}


async def test_what_has_no_effect_is_told_again(client: httpx.AsyncClient) -> None:
    body = {**ASK, **ECHOED, "service_tier": "priority", "text": {"verbosity": "medium"}}
    response = (await client.post("/v1/responses", json=body)).json()
    assert {name: response[name] for name in ECHOED} == ECHOED
    assert (response["service_tier"], response["text"]["verbosity"]) == ("default", "medium")
    plain = (await client.post("/v1/responses", json=ASK)).json()
    assert (plain["parallel_tool_calls"], plain["truncation"], plain["user"]) == (True, "disabled", None)


TAKEN = [
    {"include": ["reasoning.encrypted_content", "web_search_call.results"]},
    {"reasoning": {"effort": "none", "summary": "auto", "context": "auto", "mode": "standard"}},
    {"reasoning": {}},
    {"stream_options": {"include_obfuscation": False}, "stream": True},
    {"stream_options": {}},
    {"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}},
    {"client_metadata": {"a": "b"}},
    {"context_management": [], "tools": [], "tool_choice": "none"},
]


@pytest.mark.parametrize("said", TAKEN)
async def test_what_asks_for_what_is_so_is_taken(client: httpx.AsyncClient, said: dict[str, object]) -> None:
    assert (await client.post("/v1/responses", json={**ASK, **said})).status_code == 200


REFUSED = [
    ({"truncation": "some"}, "truncation"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"user": 5}, "user"),
    ({"safety_identifier": "x" * 513}, "safety_identifier"),
    ({"prompt_cache_key": []}, "prompt_cache_key"),
    ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
    ({"prompt_cache_options": {"mode": "none"}}, "prompt_cache_options.mode"),
    ({"prompt_cache_options": {"size": 1}}, "prompt_cache_options.size"),
    ({"client_metadata": "x"}, "client_metadata"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"include": ["file_search_call.everything"]}, "include"),
    ({"include": [7]}, "include"),
    ({"include": [["x"]]}, "include"),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
    ({"reasoning": {"depth": 1}}, "reasoning.depth"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity"),
    ({"text": {"colour": "red"}}, "text.colour"),
    ({"stream_options": {"include_obfuscation": True}, "stream": True}, "stream_options.include_obfuscation"),
]


@pytest.mark.parametrize(("said", "param"), REFUSED)
async def test_responses_refuse_the_rest_by_name(
    client: httpx.AsyncClient, engine: FakeEngine, said: dict[str, object], param: str
) -> None:
    response = await client.post("/v1/responses", json={**ASK, **said})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert engine.calls == []


CHAT_REFUSED = [
    ({"store": True}, "store"),
    ({"metadata": {"a": "b"}}, "metadata"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"verbosity": "high"}, "verbosity"),
    ({"prediction": {"type": "content"}}, "prediction.content"),
    ({"prediction": {"type": "content", "content": 5}}, "prediction.content"),
    ({"prediction": {"type": "content", "content": [5]}}, "prediction.content[0]"),
    ({"prediction": {"type": "content", "content": "x", "weight": 1}}, "prediction.weight"),
    ({"prediction": {"type": "guess", "content": "x"}}, "prediction.type"),
    ({"service_tier": 1}, "service_tier"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream_options": {"every": 1}, "stream": True}, "stream_options.every"),
]


@pytest.mark.parametrize(("said", "param"), CHAT_REFUSED)
async def test_chat_refuses_the_rest_by_name(
    client: httpx.AsyncClient, engine: FakeEngine, said: dict[str, object], param: str
) -> None:
    response = await client.post("/v1/chat/completions", json={**CHAT, **said})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert engine.calls == []


async def test_a_chats_hints_are_taken(client: httpx.AsyncClient) -> None:
    said = {
        "prediction": {"type": "content", "content": "Hello"},
        "store": False,
        "metadata": {},
        "verbosity": "medium",
        "reasoning_effort": "none",
        "parallel_tool_calls": True,
        "user": "me",
    }
    assert (await client.post("/v1/chat/completions", json={**CHAT, **said})).status_code == 200


@pytest.mark.parametrize(
    ("text", "name"), [('{"input": "a", "input": "b"}', "input"), ('{"input": "a", "text": {"x": 1, "x": 1}}', "x")]
)
async def test_a_field_that_is_there_twice_is_refused(client: httpx.AsyncClient, text: str, name: str) -> None:
    error = (await client.post("/v1/responses", content=text)).json()["error"]
    assert (error["code"], error["param"]) == ("duplicate_parameter", name)
