"""Opening models and serving them, for `unicorn serve` and `unicorn demo`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.background import end_task, run_to_end
from unicorn_async.checkpoint.catalog import CatalogEntry, ModelCatalog, given_entry
from unicorn_async.cli.interpreter import release_start, settle_interpreter
from unicorn_async.cli.log_lines import log_lines
from unicorn_async.cli.process_limits import make_room_for, return_large_blocks
from unicorn_async.cli.progress import ProgressLine, download_text, show_load
from unicorn_async.cli.server_limits import limits
from unicorn_async.cli.server_options import API_KEY_VARIABLE
from unicorn_async.engine.leftovers import Leftovers
from unicorn_async.engine.model_library import ModelLibrary
from unicorn_async.errors import ConfigError, EngineClosedError, UnicornError
from unicorn_async.server import ModelHost, ServerOptions, serve
from unicorn_async.server.health import is_well
from unicorn_async.server.keys import read_keys
from unicorn_async.server.model_state import ModelStatus
from unicorn_async.server.protocol.errors import ApiError

if TYPE_CHECKING:
    import argparse
    import socket
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

    from unicorn_async.checkpoint.hub import HubName
    from unicorn_async.config import EngineConfig
    from unicorn_async.engine.engine import Engine
    from unicorn_async.gpu.instance_start import InstanceStart
    from unicorn_async.hub.pending import PendingPull
    from unicorn_async.server.model_change import Change
    from unicorn_async.server.served_model import ServedModel
    from unicorn_async.server.tls import FileContext

logger = logging.getLogger(__name__)

_OPEN_HOSTS = ("0.0.0.0", "::", "")


def server_options(options: argparse.Namespace) -> ServerOptions:
    """Return how the server behaves; the key on the command line comes before the environment's.

    Raises:
        ConfigError: a key is empty, or the file of keys, or TLS's, can't be used.
    """
    given = os.environ.get(API_KEY_VARIABLE)
    key = given if options.api_key is None else options.api_key
    name = API_KEY_VARIABLE if key == given else "--api-key"
    if key is not None and not key.strip():
        raise ConfigError(f"{name}: expected a key, got an empty one")
    return ServerOptions(
        api_key=key,
        api_keys=read_keys(options.api_key_file) if options.api_key_file is not None else (),
        api_key_file=options.api_key_file,
        share_prefixes=options.share_prefixes,
        allowed_hosts=tuple(options.allow_host),
        cors_origins=tuple(options.cors_origin),
        tls=_tls(options.tls_cert, options.tls_key),
        recommended_sampling=options.generation_config == "auto",
        store_file=options.store,
        drain_s=options.drain,
        otlp_endpoint=options.otlp_endpoint,
        **limits(options),
    )


def _tls(certificate: Path | None, key: Path | None) -> FileContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("TLS wants both --tls-cert, a certificate, and --tls-key, its key")
    from unicorn_async.server.tls import tls_context  # with a library that few servers want

    return tls_context(certificate, key)


def warn_of_visible_key(key: str | None, arguments: Sequence[str]) -> None:
    """Log that the list of processes shows the key, if the command line has it."""
    if key is not None and any(argument == key or argument.endswith(f"={key}") for argument in arguments):
        logger.warning(
            "others on this machine can see the key of --api-key; %s or --api-key-file hides it", API_KEY_VARIABLE
        )


def model_catalog(options: argparse.Namespace, *, is_on_its_way: bool = False) -> ModelCatalog:
    """Return what clients may load: the command line's model, if it has one, and what lies below its folders.

    Where the model `is_on_its_way`, it lies nowhere yet.

    Raises:
        ConfigError, CheckpointError: there is no such model or folder, or nothing that could be served.
    """
    if options.model is None and not options.models_dir:
        raise ConfigError("give a MODEL to serve, or a --models-dir that clients may load models from")
    if options.model is None and options.keep_model:
        raise ConfigError("--keep-model: there is no MODEL to keep")
    given = None
    if options.model is not None:
        given = None if is_on_its_way else given_entry(options.model, options.model_name)
        given = given or CatalogEntry(options.model_name or options.model, options.model)
    return ModelCatalog(given, options.models_dir)


async def serve_models(
    options: argparse.Namespace,
    config: EngineConfig,
    listener: socket.socket,
    vulkan: InstanceStart | None = None,
    to_pull: HubName | None = None,
) -> int:
    """Serve at a socket as the command line says, until a signal comes; returns the exit status.

    Requests are taken while a model is opened and loads; those that need it wait.
    The command line's model is brought from the hub where that is what is `to_pull`, and loaded as it comes.

    Raises:
        UnicornError: there is no such model, the model given at the start does not come or can't be opened, or the one
            model that the server keeps can't be loaded.
    """
    catalog, behaviour = model_catalog(options, is_on_its_way=to_pull is not None), server_options(options)
    num_connections = make_room_for(2 * behaviour.max_connections) // 2  # busy ones, and as many idle ones
    return_large_blocks()
    with ProgressLine() as line, log_lines(line):
        warn_of_visible_key(behaviour.api_key, sys.argv[1:])
        behaviour = _with_room(behaviour, num_connections)
        introduce, leftovers = partial(_introduce, line), Leftovers()
        pulled = None if to_pull is None else _begin_pull(options.model, to_pull)
        library = ModelLibrary(
            catalog,
            config,
            on_open=introduce,
            vulkan=vulkan,
            leftovers=leftovers,
            coming=None if pulled is None else pulled.coming,
            again=None if pulled is None else pulled.again,
        )
        async with leftovers, _host(library, options) as models:
            given = library.given()
            first = models.begin(given) if given is not None else None
            if first is None:
                from unicorn_async.cli.banner import banner_without_model

                for text in banner_without_model():
                    line.note(text)

            def announce(address: str) -> None:
                line.note(f"address  {address} (chat page; API under {address}/v1); Ctrl-C ends it")
                if options.host in _OPEN_HOSTS and not behaviour.keys:
                    line.note("         anybody who reaches this port may use it; --api-key-file changes that")

            serving = serve(models, listener=listener, options=behaviour, on_ready=announce)
            try:
                on_left = (lambda: None) if pulled is None else pulled.log_failures
                await while_showing_loads(models, first, line, serving, on_left)
            finally:
                if pulled is not None:
                    await run_to_end(pulled.close)  # before the model is: its threads may wait for what comes
    return 0


def _begin_pull(model: str, name: HubName) -> PendingPull:
    from unicorn_async.cli.pull import begin_pull_model  # with what few starts need

    return begin_pull_model(model, name)


def _with_room(behaviour: ServerOptions, num_connections: int) -> ServerOptions:
    """Return the options with as many connections as there are files for, so that none is ever lacking for others."""
    if num_connections >= behaviour.max_connections:
        return behaviour
    logger.warning(
        "the limit of open files (ulimit -n) has room for %d connections at a time, not for --max-connections %d",
        num_connections,
        behaviour.max_connections,
    )
    return replace(behaviour, max_connections=num_connections)


def _host(library: ModelLibrary, options: argparse.Namespace) -> ModelHost:
    return ModelHost(library, can_switch=not options.keep_model, max_restarts=options.max_restarts)


async def while_showing_loads(
    models: ModelHost,
    first: Change | None,
    line: ProgressLine,
    serving: Coroutine[None, None, None],
    on_left: Callable[[], None] = lambda: None,
) -> None:
    """Serve and show the loads beside it; `on_left` is called if a client leaves the first one for another model.

    That the first model can't be opened ends the server, in order. A load that fails does not, unless the server keeps
    its model: then nothing could be loaded any more.
    """
    try:
        async with asyncio.TaskGroup() as group:
            shown = group.create_task(_show_loads(models, first, line, on_left))
            await serving
            shown.cancel()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _show_loads(models: ModelHost, first: Change | None, line: ProgressLine, on_left: Callable[[], None]) -> None:
    shown: ServedModel | None = None
    if first is not None:
        line.update(f"opening  {first.name}")
        downloading = asyncio.create_task(_show_download(models, line))
        try:
            await _check_opened(models, first, on_left)
        finally:
            await end_task(downloading)
    is_start = first is None
    async for state in models.watch():
        reason = str(state.full_error).removeprefix(f"{state.name}: ")  # which has it from where it is told alone
        if state.status is ModelStatus.FAILED and state.has_served:
            if state.retry_s is None:
                raise UnicornError(f"the engine of {state.name} has failed too often in a row: {reason}")
            line.note(f"failed   {state.name}: {reason}; it is opened again in {state.retry_s:g} s")
        elif state.status is ModelStatus.FAILED:
            if not models.can_switch:
                raise UnicornError(
                    f"{state.name} could not be loaded: {reason}\n"
                    "the server has no model now and, because of --keep-model, takes no other: start it again"
                )
            line.note(f"failed   {state.name}: {reason}")
        elif state.status is ModelStatus.EMPTY and not is_start:
            line.note("unloaded")
        is_start = False
        if not is_well(state):
            settle_interpreter()
        if state.model is not shown:
            if shown is not None:
                release_start()
            shown = state.model
            await _show(shown, line)


async def _show_download(models: ModelHost, line: ProgressLine) -> None:
    async for state in models.watch():
        if state.download is not None:
            line.update(download_text(state.download))


async def _show(model: ServedModel | None, line: ProgressLine) -> None:
    if model is not None:
        with suppress(UnicornError):  # the model's state tells of it
            await show_load(model.engine, line)


async def _check_opened(models: ModelHost, first: Change, on_left: Callable[[], None]) -> None:
    """Raise why the first model can't be opened; that a client has asked for another one meanwhile is no failure."""
    try:
        await first.opened()
    except ApiError:
        on_left()
    except EngineClosedError:
        if not models.is_stopped:
            raise


def _introduce(line: ProgressLine, engine: Engine) -> None:
    from unicorn_async.cli.banner import banner  # with what an open engine has brought along

    for text in banner(engine):
        line.note(text)
