"""What is wrong with a prompt names the field that it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from unicorn_async.errors import PromptTooLongError, QueueFullError, RequestError

if TYPE_CHECKING:
    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine

LONG = "word " * 2000


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/responses", {"input": LONG}, "input"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ("/v1/completions", {"prompt": LONG}, "prompt"),
    ],
)
async def test_a_prompt_that_is_too_long(served: Served, path: str, body: dict[str, object], field: str) -> None:
    async with httpx.AsyncClient(base_url=served.url) as client:
        refused = await client.post(path, json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", field)


@pytest.mark.parametrize(
    ("cause", "status", "param"),
    [
        (RequestError("token 99: expected a whole number, 0 to 9"), 400, "prompt"),
        (PromptTooLongError("12 tokens"), 400, "prompt"),
        (QueueFullError("5 wait already"), 429, None),
    ],
)
async def test_what_the_engine_refuses(
    served: Served, engine: FakeEngine, cause: Exception, status: int, param: str | None
) -> None:
    engine.refuse = cause
    async with httpx.AsyncClient(base_url=served.url) as client:
        refused = await client.post("/v1/completions", json={"prompt": [99]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)


async def test_a_token_beyond_the_vocabulary_has_no_text(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url) as client:
        refused = await client.post("/detokenize", json={"tokens": [5, 100_000]})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "tokens: expected 0 to 99999, got 100000"


@pytest.mark.parametrize("text", ['{"input": ' + "[" * 60_000, '{"seed": ' + "1" * 5000 + "}"])
async def test_what_is_no_json_for_us_is_told_in_our_words(served: Served, text: str) -> None:
    async with httpx.AsyncClient(base_url=served.url) as client:
        refused = await client.post("/v1/responses", content=text)
    assert refused.status_code == 400
    assert not {"sys.", "recursion"} & set(refused.json()["error"]["message"].split())
    assert "python" not in refused.text.lower() and "set_int_max" not in refused.text
