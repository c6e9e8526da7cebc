"""The served description is of what the server has."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from openapi_spec_validator import validate
from starlette.routing import Route

import unicorn_async.server
from unicorn_async.server import ServerOptions, create_app
from unicorn_async.server.openapi import OPERATIONS, description
from unicorn_async.server.openapi_schemas import FIELDS, schemas
from unicorn_async.server.page import MEDIA_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine


async def test_each_route_is_described_and_nothing_else(engine: FakeEngine) -> None:
    routes = {
        (method.lower(), route.path.replace(":path", ""))
        for route in create_app(engine).routes
        if isinstance(route, Route) and route.path != "/" and Path(route.path).suffix not in MEDIA_TYPES
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert {(operation.method, operation.path) for operation in OPERATIONS} == routes


def test_it_is_valid() -> None:
    validate(description("1.0", needs_key=True))  # type: ignore[arg-type]


def test_no_schema_is_left_over() -> None:
    used = {name for schema in schemas().values() for name in schema.get("properties", {})}  # type: ignore[attr-defined]
    assert used - {"error"} == set(FIELDS)
    bodies = {operation.body for operation in OPERATIONS if operation.body}
    assert bodies == set(schemas()) - {"Error"}


async def test_it_is_served_without_a_key_and_only_read_when_it_is_asked_for(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url) as client:
        found: dict[str, Any] = (await client.get("/openapi.json")).json()
        assert found["openapi"] == "3.1.0"
        assert "200" in found["paths"]["/v1/responses"]["post"]["responses"]
    folder = Path(unicorn_async.server.__file__).parent
    imports = [
        node
        for path in folder.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module == "unicorn_async.server.openapi"
    ]
    assert imports == []


@pytest.mark.parametrize("body", [{"input": "Hi", "temperature": 0.5}, {"input": None}, {"inptu": "x"}])
async def test_bodies_are_taken_as_their_schema_says(served: Served, body: dict[str, Any]) -> None:
    schema: Any = schemas()["ResponsesRequest"]
    is_known = set(body) <= set(schema["properties"])
    async with httpx.AsyncClient(base_url=served.url) as client:
        error = (await client.post("/v1/responses", json=body)).json().get("error") or {}
    assert (error.get("code") == "unknown_parameter") is not is_known


async def test_it_says_whether_a_key_is_needed(
    served: Served, serve_with: Callable[[ServerOptions], AbstractAsyncContextManager[Served]]
) -> None:
    async with serve_with(ServerOptions(api_key="a-key")) as guarded, httpx.AsyncClient() as client:
        free = (await client.get(f"{served.url}/openapi.json")).json()
        kept = (await client.get(f"{guarded.url}/openapi.json")).json()
    assert free["security"] == [{}, {"key": []}]
    assert kept["security"] == [{"key": []}]


async def test_a_refused_method_is_told_all_others(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url) as client:
        answer = await client.post("/v1/responses/resp_1")
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"DELETE", "GET", "HEAD"}


@pytest.mark.parametrize("fields", [{"max_tokens": 0, "max_completion_tokens": 1}, {"logit_bias": False}])
async def test_chat_fields_are_checked_beside_others(served: Served, fields: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    async with httpx.AsyncClient(base_url=served.url) as client:
        answer = await client.post("/v1/chat/completions", json={"messages": messages, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(fields))


async def test_a_conversation_that_is_no_object_is_refused(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url) as client:
        answer = await client.post("/v1/responses", json={"input": "Hi", "conversation": False})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "conversation")
