"""OpenTelemetry's spans, where they are asked for."""

from __future__ import annotations

import asyncio
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.server.conftest import serving
from unicorn_async.errors import ConfigError, DeviceLostError
from unicorn_async.server import ServerOptions
from unicorn_async.server.tracing import Tracing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

    from tests.server.fake_engine import FakeEngine

OPTIONS = ServerOptions(otlp_endpoint="http://127.0.0.1:1/v1/traces")
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Have what is traced kept here."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(Tracing, "to", lambda endpoint: Tracing(provider))
    return kept


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


async def test_a_request_and_its_answer_are_spans_of_the_clients_trace(
    spans: InMemorySpanExporter, engine: FakeEngine
) -> None:
    async with serving(engine, OPTIONS) as served, httpx.AsyncClient(base_url=served.url) as client:
        headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "x-request-id": "mine"}
        body = {"input": "Hi", "temperature": 0.5}
        name = (await client.post("/v1/responses", json=body, headers=headers)).json()["id"]
        await client.get("/health")
    found = by_name(spans)
    request, answer = found["POST /v1/responses"], found["generate fake-model"]
    assert len(found) == 2
    assert request.context is not None and answer.parent is not None
    assert format(request.context.trace_id, "032x") == TRACE
    assert answer.parent.span_id == request.context.span_id
    attributes = dict(request.attributes or {})
    assert (attributes["http.response.status_code"], attributes["unicorn.request_id"]) == (200, "mine")
    attributes = dict(answer.attributes or {})
    assert attributes["gen_ai.response.id"] == name
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (2, 4)
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert [event.name for event in answer.events] == ["first token"]


async def test_a_failure_is_on_its_spans(spans: InMemorySpanExporter, engine: FakeEngine) -> None:
    engine.fail[1] = DeviceLostError("gone")
    async with serving(engine, OPTIONS) as served, httpx.AsyncClient(base_url=served.url) as client:
        await client.post("/v1/responses", json={"input": "Hi"})
    found = by_name(spans)
    assert not found["POST /v1/responses"].status.is_ok
    assert [event.name for event in found["generate fake-model"].events] == ["first token", "exception"]


class Collector(BaseHTTPRequestHandler):
    """Takes spans."""

    def do_POST(self) -> None:
        Collector.received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass

    received: list[tuple[str, bytes]] = []  # noqa: RUF012


@pytest.fixture
def collector() -> Iterator[str]:
    Collector.received.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
        server.shutdown()


async def test_spans_are_sent_to_the_collector_before_the_server_ends(collector: str, engine: FakeEngine) -> None:
    options = ServerOptions(otlp_endpoint=collector)
    async with serving(engine, options) as served, httpx.AsyncClient(base_url=served.url) as client:
        await client.post("/v1/responses", json={"input": "Hi"})
    path, sent = Collector.received[0]
    assert path == "/v1/traces"
    assert b"POST /v1/responses" in sent and b"generate fake-model" in sent


async def test_a_server_without_them_imports_nothing_for_them(engine: FakeEngine) -> None:
    program = "import sys, unicorn_async.cli.serving; print('opentelemetry' in sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert output == b"False\n"


def test_what_can_not_be_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="expected an http"):
        ServerOptions(otlp_endpoint="localhost:4317")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"opentelemetry.sdk is missing; `pip install unicorn-async\[otel\]`"):
        ServerOptions(otlp_endpoint="http://127.0.0.1:1/v1/traces")
