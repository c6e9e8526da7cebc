"""Embeddings over HTTP, with the official client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from unicorn_async.errors import DeviceLostError, QueueFullError, RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine

MODEL = "fake-model"


@pytest.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


@pytest.fixture
async def plain(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url) as made:
        yield made


def embedding(num_tokens: int, size: int = 6) -> list[float]:
    return [(number + num_tokens) / 8 for number in range(size)]


async def test_texts_and_tokens_are_embedded_in_their_order(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    many = ["word " * number for number in range(1, 41)]
    cases: list[tuple[Any, list[int]]] = [
        ("one two", [3]),
        (many, [number + 1 for number in range(1, 41)]),  # a token ends each text
        ([5, 6, 7], [3]),
        ([[5, 6], [7]], [2, 1]),
    ]
    for given, lengths in cases:
        for encoding in (None, "float", "base64"):
            named: dict[str, Any] = {} if encoding is None else {"encoding_format": encoding}
            found = await client.embeddings.create(model=MODEL, input=given, user="me", **named)
            assert [item.index for item in found.data] == list(range(len(lengths)))
            if encoding != "base64":  # which the client decodes where it has asked for it by itself
                assert [item.embedding for item in found.data] == [embedding(length) for length in lengths]
            assert (found.usage.prompt_tokens, found.usage.total_tokens) == (sum(lengths), sum(lengths))
            assert found.model == MODEL
    short = await client.embeddings.create(model=MODEL, input="a", dimensions=2)
    assert short.data[0].embedding == embedding(2, 2)
    assert all(call.closed.is_set() for call in engine.calls)


async def test_a_text_longer_than_the_context_is_told_so(plain: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.max_context = 3
    assert (await plain.post("/v1/embeddings", json={"input": ["a b"]})).status_code == 200  # and a token that ends it
    error = (await plain.post("/v1/embeddings", json={"input": ["a", "a b c"]})).json()["error"]
    assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")
    assert "more tokens than the 3 that the context holds" in error["message"]


BAD = [
    ({}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": ["a", 5]}, "input[1]"),
    ({"input": [[1], []]}, "input[1]"),
    ({"input": ["a"] * 2049}, "input"),
    ({"input": [1] * 300_001}, "input"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ({"input": "a", "dimensions": 0}, "dimensions"),
    ({"input": "a", "dimensions": 7}, "dimensions"),
    ({"input": "a", "foo": 1}, "foo"),
    ({"input": "a", "model": "other"}, "model"),
]


@pytest.mark.parametrize(("body", "param"), BAD)
async def test_what_is_wrong_is_refused_by_its_name(plain: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    reply = await plain.post("/v1/embeddings", json=body)
    assert (reply.status_code // 100, reply.json()["error"]["param"]) == (4, param), reply.text


async def test_more_numbers_than_are_sent_at_a_time_are_refused(plain: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.embedding_size = 4096
    reply = await plain.post("/v1/embeddings", json={"input": ["a"] * 257})
    assert reply.status_code == 400 and "1048576 numbers as float, got 257 times 4096" in reply.text
    reply = await plain.post("/v1/embeddings", json={"input": ["a"] * 257, "encoding_format": "base64"})
    assert reply.status_code == 200 and len(reply.json()["data"]) == 257


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [(RequestError("token 9: no"), 400, "input"), (QueueFullError("full"), 429, None), (DeviceLostError(), 500, None)],
)
async def test_an_engines_error_is_the_answer(
    plain: httpx.AsyncClient, engine: FakeEngine, error: Exception, status: int, param: str | None
) -> None:
    engine.fail[0] = error
    reply = await plain.post("/v1/embeddings", json={"input": ["a", "b"]})
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)
    metrics = (await plain.get("/metrics")).text
    outcome = "refused" if status < 500 else "failed"
    assert f'unicorn_embedding_requests_total{{outcome="{outcome}"}} 1' in metrics
    assert "unicorn_embedded_tokens_total 0" in metrics


async def test_a_client_that_goes_away_cancels_all_that_it_asked_for(
    plain: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.hold[0] = asyncio.Event()
    asked = asyncio.create_task(plain.post("/v1/embeddings", json={"input": ["a"] * 40}))
    await engine.called.wait()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    for call in engine.calls:
        await call.closed.wait()
    assert len(engine.calls) == 16  # the others were not begun
    assert (await plain.post("/tokenize", json={"prompt": "a"})).status_code == 200
