"""`unicorn serve [MODEL]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.cli.options import MODEL_HELP, add_engine_options, engine_config
from unicorn_async.cli.server_options import add_server_options
from unicorn_async.cli.server_start import run_server
from unicorn_async.cli.settings import add_settings_options

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help=f"{MODEL_HELP}; not needed with --models-dir")
    add_settings_options(parser)
    add_server_options(parser)
    add_engine_options(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    vulkan = options.vulkan if options.model is not None else None  # what it says of free memory would be old by then
    return run_server(options, engine_config(options), vulkan)
