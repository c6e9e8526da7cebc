"""/tokenize, /detokenize and /apply-template, as llama-server and vLLM have them; options of chat templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import httpx

    from tests.server.fake_engine import FakeEngine

CHAT = {"messages": [{"role": "user", "content": "Hi you"}]}


async def test_text_becomes_tokens_with_the_defaults_of_each_server(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.fake_tokenizer.pieces = {0: b"one", 1: b"\xc3"}
    llama = (await client.post("/tokenize", json={"content": "a b"})).json()
    assert llama["tokens"] == [0, 1]
    pieces = (await client.post("/tokenize", json={"content": "a b", "with_pieces": True})).json()
    assert pieces["tokens"] == [{"id": 0, "piece": "one"}, {"id": 1, "piece": [0xC3]}]
    vllm = (await client.post("/tokenize", json={"prompt": "a b", "return_token_strs": True})).json()
    assert vllm == {"count": 2, "max_model_len": 1000, "tokens": [0, 1], "token_strs": ["one", "\ufffd"]}
    await client.post("/tokenize", json={"content": "c", "add_special": True, "parse_special": False})
    assert engine.fake_tokenizer.texts == [
        ("a b", False, True),
        ("a b", False, True),
        ("a b", True, True),
        ("c", True, False),
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"content": "a", "add_special_tokens": True}, "add_special_tokens"),
        ({"prompt": "a", "add_special": False}, "add_special"),
        ({**CHAT, "add_special": True}, "add_special"),
        ({**CHAT, "add_special_tokens": True}, "add_special_tokens"),
        ({**CHAT, "parse_special": True}, "parse_special"),
    ],
)
async def test_what_another_kind_of_text_takes_is_refused_by_name(
    client: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    reply = await client.post("/tokenize", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_conversations_become_tokens_and_text(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await client.post("/tokenize", json={**CHAT, "add_generation_prompt": False})).json()["count"] == 3
    assert engine.fake_tokenizer.options[-1]["add_generation_prompt"] is False
    assert (await client.post("/apply-template", json=CHAT)).json() == {"prompt": "[user]Hi you"}


async def test_the_prompt_has_the_tools_that_the_model_is_told_of(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    tools = {"tools": [{"type": "function", "function": {"name": "look_up", "description": "Looks things up."}}]}
    plain = (await client.post("/tokenize", json=CHAT)).json()["count"]
    assert (await client.post("/tokenize", json={**CHAT, **tools})).json()["count"] > plain
    assert "Looks things up." in (await client.post("/apply-template", json={**CHAT, **tools})).json()["prompt"]
    untold = {**CHAT, **tools, "tool_choice": "none"}
    assert (await client.post("/tokenize", json=untold)).json()["count"] == plain


async def test_tokens_become_text(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fake_tokenizer.pieces = {1: b"\xc3", 2: b"\xa9"}
    assert (await client.post("/detokenize", json={"tokens": [1, 2]})).json() == {"content": "é", "prompt": "é"}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"content": "a", "prompt": "b"}, "prompt"),
    ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
    ("/tokenize", {"content": "a", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
    ("/tokenize", {"content": 5}, "content"),
    ("/tokenize", {"content": "a", "tools": []}, "tools"),
    ("/apply-template", {**CHAT, "tools": [{"type": "web_search"}]}, "tools[0].type"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": [1, "a"]}, "tokens"),
    ("/apply-template", {"messages": []}, "messages"),
    ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"depth": 3}}, "chat_template_kwargs.depth"),
    ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs.messages"),
    ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"tone": "<eos>"}}, "chat_template_kwargs.tone"),
    ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"tone": ["x"]}}, "chat_template_kwargs.tone"),
    (
        "/v1/chat/completions",
        {**CHAT, "chat_template_kwargs": {f"a{n}": 1 for n in range(33)}},
        "chat_template_kwargs",
    ),
    (
        "/v1/chat/completions",
        {**CHAT, "continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
    ),
]


@pytest.mark.parametrize(("path", "body", "param"), REFUSED)
async def test_refusals_name_the_parameter(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any], param: str
) -> None:
    engine.fake_tokenizer.template_names = frozenset({"tone"})
    response = await client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_a_chats_template_gets_its_variables(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fake_tokenizer.template_names = frozenset({"tone"})
    variables = {"tone": "calm", "enable_thinking": False}  # the template never thinks, which is what is wanted
    said = {"chat_template_kwargs": variables, "continue_final_message": True}
    assert (await client.post("/v1/chat/completions", json={**CHAT, **said})).status_code == 200
    options = {"variables": variables, "continue_final": True, "add_generation_prompt": False}
    assert engine.fake_tokenizer.options[-1] == options


async def test_paths_that_are_not_there_are_told_as_json(client: httpx.AsyncClient) -> None:
    response = await client.get("/tokenize")
    assert (response.status_code, response.json()["error"]["code"]) == (405, "method_not_allowed")
