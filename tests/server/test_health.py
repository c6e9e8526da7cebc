"""What `/health` says, without a server."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx

from tests.server.conftest import serving
from unicorn_async.kv_store.report import KVStoreStats
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
        reason = "the tokenizer's process can't be started: Too many open files"
        engine.outages["tokenizer"] = reason
        health = await client.get("/health")
        assert (health.status_code, health.json()["error"]) == (503, reason)
        assert (await client.get("/ready")).status_code == 503
        found = (await client.get("/metrics")).text
        assert "unicorn_well 0\n" in found and "unicorn_ready 0\n" in found
        assert 'unicorn_outage{part="tokenizer"} 1\n' in found
        engine.outages.clear()
        engine.outages["grammars"] = "the process that follows grammars can't be started: Too many open files"
        health = await client.get("/health")
        assert health.status_code == 200, "other requests are answered"
        assert health.json()["outages"] == engine.outages
        found = (await client.get("/metrics")).text
        assert 'unicorn_outage{part="grammars"} 1\n' in found
        assert 'unicorn_outage{part="tokenizer"} 0\n' in found
        engine.outages.clear()
        assert (await client.get("/health")).json()["error"] is None
        assert (await client.get("/ready")).status_code == 200


async def test_what_keeps_blocks_from_a_disk_is_said_without_its_place(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "/srv/models/small/model.safetensors: No such file or directory"
    store = KVStoreStats(failures=1, problem=f"opening the disk's folder: {reason}", disk=f"off: {reason}")
    stats = replace(engine.stats(), kv_store=store)
    monkeypatch.setattr(engine, "stats", lambda: stats)
    engine.outages["kv_disk"] = reason
    async with serving(engine) as served, httpx.AsyncClient(base_url=served.url) as client:
        health = await client.get("/health")
        assert 'unicorn_outage{part="kv_disk"} 1\n' in (await client.get("/metrics")).text
    found = health.json()["stats"]["kv_store"]
    public = "model.safetensors: No such file or directory"
    assert (found["problem"], found["disk"]) == (f"opening the disk's folder: {public}", f"off: {public}")
    assert found["failures"] == 1
    assert (health.status_code, health.json()["outages"]) == (200, {"kv_disk": public})
