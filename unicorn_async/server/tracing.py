"""OpenTelemetry spans of requests and of what is generated for them, sent by OTLP over HTTP.

The SDK is imported when it is asked for, and then in a thread. Names of attributes are those of OpenTelemetry's
semantic conventions for HTTP servers and for generative AI.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span
    from starlette.types import Scope

    from unicorn_async.engine.types import Token
    from unicorn_async.sampling_params import SamplingParams

SERVICE_NAME = "unicorn_async"
SEND_TIMEOUT_S = 2  # a collector that is gone holds up the server's end for no longer


class Tracing:
    """Begins spans; `close` sends those that wait."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE_NAME)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, endpoint: str) -> Tracing:
        """Send spans to a collector's address, e.g. http://127.0.0.1:4318/v1/traces; imports take a while."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider(resource=Resource.create({"service.name": SERVICE_NAME}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=SEND_TIMEOUT_S)))
        return cls(provider)

    def close(self) -> None:
        """Send what waits; it blocks on the network."""
        self._provider.shutdown()

    @contextmanager
    def request(self, scope: Scope, request_id: str) -> Iterator[Span]:
        """Trace a request for the block's time, as a part of its client's trace where that has sent one."""
        from opentelemetry.trace import SpanKind

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with self._tracer.start_as_current_span(
            scope.get("method", "WEBSOCKET"),
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            attributes={"url.path": scope["path"][:200], "unicorn.request_id": request_id},
        ) as span:
            yield span

    async def traced(
        self,
        stream: AsyncGenerator[Token, None],
        model: str,
        request_id: str,
        num_prompt: int,
        sampling: SamplingParams,
    ) -> AsyncGenerator[Token, None]:
        """Yield a stream's tokens within a span of the request under way; closing this closes the stream."""
        span = self._tracer.start_span(
            f"generate {model}",
            attributes={
                "gen_ai.operation.name": "text_completion",
                "gen_ai.request.model": model,
                "gen_ai.request.max_tokens": sampling.max_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.response.id": request_id,
                "gen_ai.usage.input_tokens": num_prompt,
            },
        )
        began, num_tokens = time.perf_counter(), 0
        try:
            async for token in stream:
                if num_tokens == 0:
                    span.add_event("first token", {"seconds": time.perf_counter() - began})
                num_tokens += 1
                if token.finish_reason is not None:
                    span.set_attribute("gen_ai.response.finish_reasons", [token.finish_reason.value])
                yield token
        except Exception as exc:
            span.record_exception(exc)
            raise
        finally:
            span.set_attribute("gen_ai.usage.output_tokens", num_tokens)
            span.end()
            await stream.aclose()


def describe_answer(span: Span, method: str, route: str | None, status: int) -> None:
    """Put what a request got on its span."""
    from opentelemetry.trace import StatusCode

    span.set_attribute("http.request.method", method)
    span.set_attribute("http.response.status_code", status)
    if route is not None:
        span.set_attribute("http.route", route)
        span.update_name(f"{method} {route}")
    if status >= 500:
        span.set_status(StatusCode.ERROR)
