"""Opening a model and serving it, for `unicorn serve` and `unicorn demo`."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from unicorn_async.cli.banner import banner
from unicorn_async.cli.options import port_number
from unicorn_async.cli.progress import ProgressLine, show_load
from unicorn_async.engine.engine import Engine
from unicorn_async.server import ServerOptions, bind, serve

if TYPE_CHECKING:
    import argparse
    from collections.abc import Coroutine
    from pathlib import Path

    from unicorn_async.config import EngineConfig

API_KEY_VARIABLE = "UNICORN_API_KEY"
_OPEN_HOSTS = ("0.0.0.0", "::", "")


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add where to listen, and who may ask."""
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    group.add_argument("--port", type=port_number, default=8000, help="0 takes any free one (default 8000)")
    group.add_argument("--api-key", metavar="KEY", help=f"clients must send it; or set {API_KEY_VARIABLE}")
    group.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="further name that browsers may use"
    )


def server_options(options: argparse.Namespace) -> ServerOptions:
    """Return how the server behaves; the key on the command line comes before the environment's."""
    key = options.api_key if options.api_key is not None else os.environ.get(API_KEY_VARIABLE)
    return ServerOptions(api_key=key, allowed_hosts=tuple(options.allow_host))


async def serve_model(model: str | Path, config: EngineConfig, *, host: str, port: int, options: ServerOptions) -> int:
    """Serve until a signal comes; returns the exit status. Requests are taken while the model loads.

    Raises:
        UnicornError: the model can't be opened or loaded, or the port is taken.
    """
    # The port first: whether it is free shows at once, and nobody takes it while the model is opened.
    with bind(host, port) as listener, ProgressLine() as line:
        async with Engine.open(model, config=config) as engine:
            for text in banner(engine):
                line.note(text)

            def announce(address: str) -> None:
                line.note(f"address  {address} (chat page; API under {address}/v1); Ctrl-C ends it")
                if host in _OPEN_HOSTS and options.api_key is None:
                    line.note("         anybody who reaches this port may use it; --api-key changes that")

            serving = serve(engine, listener=listener, options=options, on_ready=announce)
            await while_loading(engine, line, serving)
    return 0


async def while_loading(engine: Engine, line: ProgressLine, serving: Coroutine[None, None, None]) -> None:
    """Serve and show the load beside it; a load that fails ends the server, in order."""
    try:
        async with asyncio.TaskGroup() as group:
            load = group.create_task(show_load(engine, line))
            await serving
            load.cancel()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
