"""What clients are told of models before they are loaded."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.gpu.made_up import NVIDIA_WINDOW
from tests.memory.test_plan import HOST, INT4_8B, LLAMA_8B
from tests.server.conftest import serving
from tests.server.fake_engine import FakeEngine
from tests.server.fake_library import FakeLibrary
from unicorn_async.config import EngineConfig, WeightScheme
from unicorn_async.engine.model_facts import ModelFacts
from unicorn_async.engine.model_library import AdapterChoice, ModelChoice
from unicorn_async.engine.placement import DevicePlan
from unicorn_async.errors import CheckpointError, DownloadError
from unicorn_async.memory.plan import plan_memory
from unicorn_async.server import ModelHost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FACTS = ModelFacts(
    16_060_556_376, "safetensors", ("BF16", "F32"), False, 8_030_261_248, 32, 131_072, "LlamaForCausalLM", True
)
PLAN = plan_memory(LLAMA_8B, EngineConfig(max_context=2048), INT4_8B, NVIDIA_WINDOW, host_bytes=HOST)


@pytest.fixture
async def client(library: FakeLibrary) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        ModelHost(library) as models,
        serving(models) as served,
        httpx.AsyncClient(base_url=served.url) as made,
    ):
        yield made


async def test_the_list_has_what_is_known_of_each_model(client: httpx.AsyncClient, library: FakeLibrary) -> None:
    folder = Path("/srv/models of mine/c")
    library.facts = {"a": FACTS, "c": ModelFacts(10, "gguf", problem=f"{folder}/c.gguf: ends too early")}
    library.adapter_names = ("poet",)
    listed = (await client.get("/v1/models")).json()
    assert listed["adapters"] == ["poet"]
    a, b, c = listed["data"]
    assert a["problem"] is None
    assert a["details"] == {
        "file_bytes": 16_060_556_376,
        "format": "safetensors",
        "weight_types": ["BF16", "F32"],
        "quantised": False,
        "parameters": 8_030_261_248,
        "layers": 32,
        "max_context": 131_072,
        "architecture": "LlamaForCausalLM",
        "fits": True,
    }
    assert (b["details"], b["problem"]) == (None, None)
    assert c["details"]["parameters"] is None
    assert "ends too early" in c["problem"]
    assert "/srv" not in c["problem"]
    assert (await client.get("/v1/models/a")).json() == a


async def test_a_placement_is_told_before_anything_is_loaded(client: httpx.AsyncClient, library: FakeLibrary) -> None:
    library.plans["a"] = (DevicePlan(NVIDIA_WINDOW, PLAN),)
    wanted = {"model": "a", "weights": "int4", "max_context": 2048, "loras": [{"name": "poet", "weight": 0.5}]}
    response = await client.post("/v1/models/placement", json=wanted)
    assert response.status_code == 200
    told = response.json()
    assert (told["object"], told["model"], told["weights"], told["fits"]) == ("model.placement", "a", "int4", True)
    (device,) = told["devices"]
    assert (device["device"], device["device_type"], device["fits"]) == (NVIDIA_WINDOW.name, "discrete", True)
    assert device["max_context"] == 2048
    assert {"group": "FFN", "layers": [0, 31], "heap": "VRAM"}.items() <= next(
        row for row in device["placement"] if row["group"] == "FFN"
    ).items()
    assert library.planned == [ModelChoice("a", WeightScheme.INT4, 2048, (AdapterChoice("poet", 0.5),))]
    assert library.engines == []


async def test_a_model_that_does_not_fit_is_told_with_what_is_missing(
    client: httpx.AsyncClient, library: FakeLibrary
) -> None:
    library.plans["a"] = (DevicePlan(NVIDIA_WINDOW, None, "12 bytes of memory are missing"),)
    told = (await client.post("/v1/models/placement", json={"model": "a"})).json()
    assert told["fits"] is False
    assert told["devices"][0]["problem"] == "12 bytes of memory are missing"
    assert told["devices"][0]["placement"] == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "missing_parameter"),
        ({"model": "a", "weights": "int3"}, 400, "invalid_value"),
        ({"model": "a", "wait": True}, 400, "unknown_parameter"),
        ({"model": "unknown"}, 404, "model_not_found"),
    ],
)
async def test_a_placement_that_can_not_be_told_is_refused(
    client: httpx.AsyncClient, body: dict[str, object], status: int, code: str
) -> None:
    response = await client.post("/v1/models/placement", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


async def test_a_damaged_model_is_refused_without_the_folders_it_lies_in(
    client: httpx.AsyncClient, library: FakeLibrary
) -> None:
    library.refuse = CheckpointError("/srv/hidden/model.safetensors: ends too early")
    error = (await client.post("/v1/models/placement", json={"model": "a"})).json()["error"]
    assert (error["code"], error["message"]) == ("model_unusable", "model.safetensors: ends too early")


async def test_the_placement_of_a_model_whose_download_has_ended_is_refused(
    client: httpx.AsyncClient, library: FakeLibrary
) -> None:
    library.refuse = DownloadError("org/a: the network is gone")
    response = await client.post("/v1/models/placement", json={"model": "a"})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "model_unusable")
    assert error["message"] == "org/a: the network is gone"


async def test_the_loop_goes_on_while_files_are_read() -> None:
    reading, go_on = threading.Event(), threading.Event()

    class Slow(FakeLibrary):
        def placement(self, choice: ModelChoice) -> None:  # type: ignore[override]
            reading.set()
            assert go_on.wait(600)
            raise CheckpointError("gone")

    async with (
        ModelHost(Slow()) as models,
        serving(models) as served,
        httpx.AsyncClient(base_url=served.url) as slow,
        httpx.AsyncClient(base_url=served.url) as other,
    ):
        asked = asyncio.create_task(slow.post("/v1/models/placement", json={"model": "a"}))
        await asyncio.to_thread(reading.wait)
        assert (await other.get("/health")).json()["status"] == "empty"
        go_on.set()
        assert (await asked).json()["error"]["message"] == "gone"


async def test_a_server_of_one_engine_has_no_details_and_plans_nothing() -> None:
    async with serving(FakeEngine()) as served, httpx.AsyncClient(base_url=served.url) as client:
        listed = (await client.get("/v1/models")).json()
        assert [(model["id"], model["details"]) for model in listed["data"]] == [("fake-model", None)]
        assert listed["adapters"] == []
        refused = await client.post("/v1/models/placement", json={"model": "fake-model"})
        assert refused.status_code == 404
