"""`unicorn serve [MODEL]`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.cli.options import MODEL_HELP, add_engine_options, engine_config
from unicorn_async.cli.server_options import add_server_options
from unicorn_async.cli.server_start import run_server
from unicorn_async.cli.settings import add_settings_options
from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help=f"{MODEL_HELP}; not needed with --models-dir")
    parser.add_argument(
        "--pull", action="store_true", help="bring MODEL from the Hugging Face hub first, unless it is on this machine"
    )
    add_settings_options(parser)
    add_server_options(parser)
    add_engine_options(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    if options.pull:
        _pull(options.model)
    vulkan = options.vulkan if options.model is not None else None  # what it says of free memory would be old by then
    return run_server(options, engine_config(options), vulkan)


def _pull(model: str | None) -> None:
    """Bring a model that is named as the hub has it, and is not here: then nobody asks the hub anything."""
    if model is None:
        raise ConfigError("--pull: there is no MODEL to bring")
    from unicorn_async.checkpoint.location import DEMO  # this, and the rest, is what few starts need
    from unicorn_async.cli.pull import hub_name, pull_model
    from unicorn_async.hub.cached import is_cached

    if model == DEMO or Path(model).expanduser().exists() or is_cached(name := hub_name(model)):
        return
    pull_model(name)
