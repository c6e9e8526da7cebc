"""The application, and the server that runs it on one port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, cast

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import WebSocketRoute

from unicorn_async.resources import resource_dir
from unicorn_async.server.channel import Channels
from unicorn_async.server.completion_endpoints import CompletionEndpoints
from unicorn_async.server.cors import Cors
from unicorn_async.server.embedding_endpoints import EmbeddingEndpoints
from unicorn_async.server.gate import Gate
from unicorn_async.server.guard import unrouted
from unicorn_async.server.http import HttpEndpoints
from unicorn_async.server.http_protocol import HttpProtocol
from unicorn_async.server.listener import BACKLOG, address_of, bind, drop_silent
from unicorn_async.server.model_endpoints import ModelEndpoints
from unicorn_async.server.model_host import ModelHost
from unicorn_async.server.observer import Observer
from unicorn_async.server.operation import OperationEndpoints
from unicorn_async.server.options import ServerOptions
from unicorn_async.server.page import page_routes
from unicorn_async.server.port import Port
from unicorn_async.server.service import Service
from unicorn_async.server.signals import obey_signals
from unicorn_async.server.tls_protocol import Handshakes, TlsProtocol
from unicorn_async.server.tokenizer_endpoints import TokenizerEndpoints
from unicorn_async.server.websocket import WebSocketEndpoint
from unicorn_async.server.websocket_protocol import WebSocketProtocol

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from unicorn_async.engine.types import EngineAPI
    from unicorn_async.server.fronted import Fronted

logger = logging.getLogger(__name__)

_CANCEL_S = 1  # from when clients are cut off until what goes on without them is cancelled


def create_app(engine: EngineAPI, options: ServerOptions | None = None) -> Starlette:
    """Return the ASGI application of one engine, which its owner closes: the API, /health and the page.

    Raises:
        ConfigError: the page's files are missing.
    """
    service = Service(ModelHost.around(engine), options or ServerOptions())
    return application(service, service.models)


def application(service: Service, host: contextlib.AbstractAsyncContextManager[object]) -> Starlette:
    """Return the ASGI application of a service; it enters `host` for as long as it runs."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with host, service.running():
            yield

    routes = [
        *HttpEndpoints(service).routes(),
        *CompletionEndpoints(service).routes(),
        *EmbeddingEndpoints(service).routes(),
        *TokenizerEndpoints(service).routes(),
        *ModelEndpoints(service).routes(),
        *OperationEndpoints(service).routes(),
        WebSocketRoute("/v1/responses", WebSocketEndpoint(service, partial(Channels, service))),
        *page_routes(service.options.web_dir or resource_dir("web") / "built"),
    ]
    return layered(routes, service, lifespan)


def layered(
    routes: Sequence[BaseRoute],
    service: Fronted,
    lifespan: Callable[[Starlette], contextlib.AbstractAsyncContextManager[None]],
) -> Starlette:
    """Return routes behind what every request passes: its name and count, other sites' pages, and who may ask."""
    # Starlette's types want a handler of any exception, which it never calls with another than the one named here.
    handlers = {HTTPException: cast("Callable[[Request, Exception], Awaitable[Response]]", unrouted)}
    middleware = [
        Middleware(Observer, metrics=service.metrics, tracing=lambda: service.tracing),
        Middleware(Cors, origins=service.options.cors_origins),
        Middleware(Gate, access=service.access, options=service.options),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers, middleware=middleware)


async def serve(
    models: EngineAPI | ModelHost,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    listener: socket.socket | None = None,
    options: ServerOptions | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until a signal comes (`obey_signals`), or the task is cancelled; who owns engine or host closes them.

    With an engine this server keeps that one model; a host, entered by the caller, may be asked to change it.
    `port` 0 takes any free one; `listener`, a socket from `bind`, is used in place of both and closed at the end.
    Answers under way at the end are cut short, with an error as their last event. `on_ready` gets the address, e.g.
    "http://127.0.0.1:8000", once requests are taken.

    Raises:
        ConfigError: the port is in use, or the host is not one of this machine's.
    """
    with listener or bind(host, port) as sock:
        drop_silent(sock, (options or ServerOptions()).send_timeout_s)
        if isinstance(models, ModelHost):
            service = Service(models, options or ServerOptions())
            app = application(service, contextlib.nullcontext())
        else:
            service = Service(ModelHost.around(models), options or ServerOptions())
            app = application(service, service.models)
        with _uvicorn_config(app, service.options) as config:
            address = address_of(sock, encrypted=service.options.tls is not None)
            server = _Server(
                config,
                on_ready=lambda: _announce(address, on_ready),
                on_stop=service.stop,
                shutdown_timeout_s=service.options.shutdown_timeout_s,
            )
            drain = service.drain if service.options.drain_s else None
            renew = service.keys.ask if service.options.api_key_file is not None else None
            with obey_signals(server, drain, service.options.drain_s, renew=renew):
                await _run(server, sock)


async def _run(server: uvicorn.Server, listener: socket.socket) -> None:
    """Run the server; a cancellation stops it in order, and further ones change nothing: the end has its own limit."""
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        server.should_exit = True
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((task,))
        task.result()
        raise


def _announce(address: str, on_ready: Callable[[str], None] | None) -> None:
    logger.info("listening on %s", address)
    if on_ready is not None:
        on_ready(address)


@contextlib.contextmanager
def _uvicorn_config(app: Starlette, options: ServerOptions) -> Generator[uvicorn.Config]:
    port = Port.of(options)
    http: Callable[..., asyncio.Protocol] = partial(HttpProtocol, port)
    with contextlib.ExitStack() as stack:
        if options.tls is not None:
            handshakes = Handshakes(options.tls, port.idle, timeout_s=options.header_timeout_s)
            stack.callback(handshakes.close)
            http = partial(TlsProtocol, handshakes, http)
        yield _config(app, options, http, partial(WebSocketProtocol, port))


def _config(
    app: Starlette,
    options: ServerOptions,
    http: Callable[..., asyncio.Protocol],
    websocket: Callable[..., asyncio.Protocol],
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", http),
        ws=cast("type[asyncio.Protocol]", websocket),
        ws_max_size=options.max_message_bytes,
        ws_per_message_deflate=False,  # tokens are small and many: compressing each costs more than sending it
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=cast("int", options.idle_timeout_s),  # it is given to the loop, which takes fractions
        timeout_graceful_shutdown=math.ceil(options.shutdown_timeout_s) + _CANCEL_S,
        backlog=BACKLOG,
    )


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves signals alone: it would raise them again at the end, before the engine closes."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        on_ready: Callable[[], None],
        on_stop: Callable[[], Awaitable[None]],
        shutdown_timeout_s: float,
    ) -> None:
        super().__init__(config)
        self._shutdown_timeout_s = shutdown_timeout_s
        self._on_ready = on_ready
        self._on_stop = on_stop

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._on_stop()  # before uvicorn closes the websockets
        drop = asyncio.get_running_loop().call_later(self._shutdown_timeout_s, self._drop)
        try:
            await super().shutdown(sockets=sockets)
        finally:
            drop.cancel()
        if self.force_exit:  # then uvicorn leaves it to who cancels all tasks, and logs that as a failure
            await self.lifespan.shutdown()

    def _drop(self) -> None:
        """Cut off who has not taken the end of its answers; whatever writes to it ends by that."""
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()
