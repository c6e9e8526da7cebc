"""What `/health` says, without a server."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

import httpx

from tests.server.conftest import serving
from unicorn_async.server.health import package_version

if TYPE_CHECKING:
    import pytest

    from tests.server.fake_engine import FakeEngine


def test_the_package_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def version(name: str) -> str:
        asked.append(name)
        return "1.2.3"

    monkeypatch.setattr(importlib.metadata, "version", version)
    package_version.cache_clear()
    try:
        assert package_version() == package_version() == "1.2.3"
    finally:
        package_version.cache_clear()
    assert asked == ["unicorn-async"]


async def test_a_server_whose_tokenizer_cannot_be_had_is_not_well_until_it_can(engine: FakeEngine) -> None:
    async with serving(engine) as served, httpx.AsyncClient(base_url=served.url) as client:
        engine.fake_tokenizer.outage = "the tokenizer's process can't be started: Too many open files"
        health = await client.get("/health")
        assert (health.status_code, health.json()["error"]) == (503, engine.fake_tokenizer.outage)
        assert (await client.get("/ready")).status_code == 503
        engine.fake_tokenizer.outage = None
        assert (await client.get("/health")).json()["error"] is None
        assert (await client.get("/ready")).status_code == 200
