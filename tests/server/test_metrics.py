"""What is counted, and how each request is named and logged."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING, Any

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import serving
from tests.server.ws_client import connected
from unicorn_async.errors import DeviceLostError
from unicorn_async.server import ServerOptions
from unicorn_async.server.archive import ArchiveState
from unicorn_async.server.metrics import Histogram, Metrics
from unicorn_async.server.metrics_text import Exposition, metrics_text
from unicorn_async.server.model_state import ModelState, ModelStatus

if TYPE_CHECKING:
    import pytest

    from tests.server.conftest import Served
    from tests.server.fake_engine import FakeEngine

ASK = {"input": "Hi"}


async def metrics(client: httpx.AsyncClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return every sample, as Prometheus' own reader finds it."""
    response = await client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = list(text_string_to_metric_families(response.text))
    assert len({family.name for family in families}) == len(families)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def labels(**given: str) -> frozenset[tuple[str, str]]:
    return frozenset(given.items())


async def test_requests_answers_and_tokens_are_counted(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await client.post("/v1/responses", json=ASK)
    name = (await client.post("/v1/responses", json={**ASK, "max_output_tokens": 2})).json()["id"]
    await client.get(f"/v1/responses/{name}")
    await client.get("/nothing/here")
    engine.fail[1] = DeviceLostError("gone")
    await client.post("/v1/responses", json=ASK)
    found = await metrics(client)
    requests = "unicorn_http_requests_total"
    assert found[requests, labels(method="POST", route="/v1/responses", status="200")] == 2
    assert found[requests, labels(method="POST", route="/v1/responses", status="500")] == 1
    assert found[requests, labels(method="GET", route="/v1/responses/{response_id}", status="200")] == 1
    assert found[requests, labels(method="other", route="none", status="404")] == 1
    for outcome, count in (("stop", 1), ("length", 1), ("failed", 1)):
        assert found["unicorn_answers_total", labels(outcome=outcome)] == count
    assert found["unicorn_output_tokens_total", labels()] == 4 + 2 + 1
    assert found["unicorn_prompt_tokens_total", labels()] == 6
    assert found["unicorn_time_to_first_token_seconds_count", labels()] == 3
    assert found["unicorn_time_between_tokens_seconds_count", labels()] == 4
    assert found["unicorn_answer_seconds_bucket", labels(le="+Inf")] == 3
    assert found["unicorn_kv_blocks", labels(kind="allocated")] == 10
    assert found["unicorn_memory_bytes", labels(heap="VRAM", kind="driver")] == 1200
    assert found["unicorn_device_seconds_total", labels(device="Fake GPU", part="model")] == 0
    assert found["unicorn_ready", labels()] == 1
    assert found["process_resident_memory_bytes", labels()] > 1 << 20
    assert abs(found["process_start_time_seconds", labels()] - time.time()) < 3600


def test_what_becomes_of_the_store_s_disk_is_told() -> None:
    store = ArchiveState(on_disk=True, error="disk I/O error", num_unkept=3, num_files_lost=1)
    lines = metrics_text(Metrics(), ModelState(ModelStatus.EMPTY), store).splitlines()
    wanted = {"unicorn_store_failing 1", "unicorn_unkept_responses_total 3", "unicorn_store_lost_files_total 1"}
    assert wanted | {"unicorn_well 0", "unicorn_ready 0"} <= set(lines)


async def test_an_answer_that_is_cancelled_is_counted_so(
    client: httpx.AsyncClient, served: Served, engine: FakeEngine
) -> None:
    engine.hold[1] = asyncio.Event()
    async with connected(served.ws_url) as socket:
        await socket.create()
        await engine.called.wait()
        assert (await metrics(client))["unicorn_websockets", labels()] == 1
    await engine.calls[0].closed.wait()
    async with asyncio.timeout(120):
        while ("unicorn_answers_total", labels(outcome="cancelled")) not in (found := await metrics(client)):
            pass
        while found["unicorn_websockets", labels()]:
            found = await metrics(client)


def test_names_of_models_and_devices_are_escaped() -> None:
    out = Exposition()
    out.add("a", "gauge", "An a.", [({"name": 'x"\\\n'}, 1)])
    (family,) = text_string_to_metric_families(out.text())
    assert family.samples[0].labels == {"name": 'x"\\\n'}


def test_a_value_on_a_bound_counts_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 9.0):
        histogram.add(value)
    assert (histogram.counts, histogram.sum) == ([1, 2, 1], 13.5)


async def test_metrics_need_the_key(engine: FakeEngine) -> None:
    async with (
        serving(engine, ServerOptions(api_key="secret")) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers={"authorization": "Bearer secret"})).status_code == 200


async def test_each_request_has_a_name(client: httpx.AsyncClient, served: Served) -> None:
    names = {(await client.get("/health")).headers["x-request-id"] for _ in range(2)}
    assert len(names) == 2
    assert (await client.get("/nothing", headers={"x-request-id": "mine-1"})).headers["x-request-id"] == "mine-1"
    for bad in ("a b", "x" * 129):
        assert (await client.get("/health", headers={"x-request-id": bad})).headers["x-request-id"].startswith("req_")
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused") as official:
        response: Any = await official.responses.create(model="fake-model", input="Hi")
        assert response._request_id.startswith("req_")
    async with connected(served.ws_url) as socket:
        assert socket.socket.response.headers["x-request-id"].startswith("req_")


async def test_requests_are_logged_with_their_name(client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    from unicorn_async.cli.log_format import JsonFormatter, TextFormatter
    from unicorn_async.server.request_context import RequestContext, current

    seen: list[str] = []
    formatters = (TextFormatter(current.get), JsonFormatter(current.get))

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.extend(formatter.format(record) for formatter in formatters)

    log, handler = logging.getLogger("unicorn_async.server.observer"), Handler()
    log.addHandler(handler)
    with caplog.at_level(logging.INFO, logger=log.name):
        await client.post("/v1/responses", json=ASK, headers={"x-request-id": "mine"})
        await client.get("/health")
    log.removeHandler(handler)
    text, line = seen
    assert " INFO [mine 127.0.0.1:" in text and "] POST /v1/responses: 200 after " in text
    fields = json.loads(line)
    assert (fields["level"], fields["request_id"]) == ("info", "mine")
    assert fields["client"].startswith("127.0.0.1:") and fields["time"].endswith("Z")
    assert current.get() is None
    assert RequestContext("a", "b") == ("a", "b")
