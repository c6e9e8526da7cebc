"""`unicorn serve [MODEL]`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.cli.options import MODEL_HELP, add_engine_options, engine_config
from unicorn_async.cli.server_options import add_server_options
from unicorn_async.cli.server_start import run_server
from unicorn_async.cli.settings import add_settings_options
from unicorn_async.config import NO_DRAFT
from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from unicorn_async.checkpoint.hub import HubName


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help=f"{MODEL_HELP}; not needed with --models-dir")
    parser.add_argument(
        "--pull",
        action="store_true",
        help="bring MODEL from the Hugging Face hub, unless it is on this machine, and load it as it comes",
    )
    add_settings_options(parser)
    add_server_options(parser)
    add_engine_options(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    if options.draft not in (None, NO_DRAFT) and options.model is None:
        raise ConfigError(f"--draft {options.draft}: there is no MODEL to draft for")
    vulkan = options.vulkan if options.model is not None else None  # what it says of free memory would be old by then
    config = engine_config(options)
    return run_server(options, config, vulkan, _to_pull(options.model) if options.pull else None)


def _to_pull(model: str | None) -> HubName | None:
    """Return what is to be brought from the hub, None where it is here: then nobody asks the hub anything."""
    if model is None:
        raise ConfigError("--pull: there is no MODEL to bring")
    from unicorn_async.checkpoint.location import DEMO  # this, and the rest, is what few starts need
    from unicorn_async.cli.pull import hub_name
    from unicorn_async.hub.cached import is_cached

    if model == DEMO or Path(model).expanduser().exists() or is_cached(name := hub_name(model)):
        return None
    return name
