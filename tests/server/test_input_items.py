"""What a response was made from, how many tokens one would have, and what is not done of OpenAI's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine

MODEL = "fake-model"


@pytest.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


async def test_input_items_are_listed_a_page_at_a_time(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL, input="one", instructions="Be brief.")
    second = await client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
    items: list[Any] = [item async for item in client.responses.input_items.list(second.id, limit=1)]
    assert [(item.role, item.content[0].text) for item in items] == [
        ("user", "two"),
        ("assistant", "Hello there, friend"),
        ("user", "one"),
    ]
    ascending: list[Any] = [item async for item in client.responses.input_items.list(second.id, order="asc")]
    assert [item.id for item in ascending] == [item.id for item in reversed(items)]
    page = await client.responses.input_items.list(second.id, limit=2, after=items[0].id)
    assert (len(page.data), page.has_more, page.first_id) == (2, False, items[1].id)


async def test_input_items_of_an_answer_under_way(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.hold[1] = asyncio.Event()
    asked = await client.responses.create(model=MODEL, input="one", background=True)
    items: list[Any] = [item async for item in client.responses.input_items.list(asked.id)]
    assert [item.content[0].text for item in items] == ["one"]
    engine.hold[1].set()


async def test_tokens_of_an_input_are_counted(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    first = await client.responses.create(model=MODEL, input="one")
    counted = await client.responses.input_tokens.count(
        model=MODEL, input="two words", instructions="Be brief.", previous_response_id=first.id
    )
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", 3 + 2 + 4 + 3)
    assert len(engine.calls) == 1


async def test_what_is_not_done_is_refused_by_name(served: Served, client: openai.AsyncOpenAI) -> None:
    async with httpx.AsyncClient(base_url=served.url) as plain:
        name = (await client.responses.create(model=MODEL, input="Hi")).id
        cases = [
            (await plain.post("/v1/responses/compact", json={"model": MODEL}), 400, "input"),
            (await plain.post("/v1/responses/input_tokens", json={"input": "x", "stream": True}), 400, "stream"),
            (await plain.get("/v1/responses/resp_none/input_items"), 404, "response_id"),
            (await plain.get(f"/v1/responses/{name}/input_items?limit=0"), 400, "limit"),
            (await plain.get(f"/v1/responses/{name}/input_items?limit=1&limit=2"), 400, "limit"),
            (await plain.get(f"/v1/responses/{name}/input_items?limit=101"), 400, "limit"),
            (await plain.get(f"/v1/responses/{name}/input_items?order=up"), 400, "order"),
            (await plain.get(f"/v1/responses/{name}/input_items?after=x"), 400, "after"),
            (await plain.get(f"/v1/responses/{name}/input_items?include=x"), 400, "include"),
            (await plain.get(f"/v1/responses/{name}/input_items?page=1"), 400, "page"),
        ]
    for response, status, param in cases:
        assert (response.status_code, response.json()["error"]["param"]) == (status, param)
