"""The start of a command that serves: the port first, then what serves there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from unicorn_async.checkpoint.hub import HubName
    from unicorn_async.config import EngineConfig
    from unicorn_async.gpu.instance_start import InstanceStart


def run_server(
    options: argparse.Namespace,
    config: EngineConfig,
    vulkan: InstanceStart | None,
    to_pull: HubName | None = None,
) -> int:
    """Open the port, and serve until a signal comes; returns the exit status.

    The port first: whether it is free shows at once, and who connects while the rest is imported waits in its queue.
    The model is brought from the hub where that is what is `to_pull`.

    Raises:
        ConfigError: the port is taken. Others: as `serve_models`.
    """
    from unicorn_async.cli.log_format import set_up_log
    from unicorn_async.server import bind
    from unicorn_async.server.request_context import current

    set_up_log(options, current.get)
    with bind(options.host, options.port) as listener:
        from unicorn_async.cli.event_loop import run_async
        from unicorn_async.cli.serving import serve_models

        return run_async(serve_models(options, config, listener, vulkan, to_pull), ended_status=0)
