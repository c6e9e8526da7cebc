"""`unicorn serve MODEL`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.cli.event_loop import run_async
from unicorn_async.cli.model_name import MODEL_HELP, model_and_config
from unicorn_async.cli.options import add_engine_options
from unicorn_async.cli.serving import add_server_options, serve_model, server_options

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    add_server_options(parser)
    add_engine_options(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    model, config = model_and_config(options)
    return run_async(serve_model(model, config, host=options.host, port=options.port, options=server_options(options)))
