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
from unicorn_async.server import create_app
from unicorn_async.server.openapi import OPERATIONS, description
from unicorn_async.server.openapi_schemas import FIELDS, schemas
from unicorn_async.server.page import MEDIA_TYPES

if TYPE_CHECKING:
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
    validate(description("1.0"))  # type: ignore[arg-type]


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
