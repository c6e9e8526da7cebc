"""`unicorn demo`: the bundled model, on a GPU if there is one, else on the software device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.location import DEMO
from unicorn_async.cli.options import add_engine_options, engine_config
from unicorn_async.cli.server_options import add_server_options
from unicorn_async.cli.server_start import run_server
from unicorn_async.cli.settings import add_settings_options

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.set_defaults(model=DEMO)
    add_settings_options(parser)
    add_server_options(parser)
    add_engine_options(parser)


def run(options: argparse.Namespace) -> int:
    """Serve the bundled model until a signal comes."""
    return run_server(options, replace(engine_config(options), allow_software=True), options.vulkan)
