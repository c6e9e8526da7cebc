"""`unicorn pull NAME`: a model from the Hugging Face hub into its cache on this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.checkpoint import CONFIG_FILE
from unicorn_async.checkpoint.hub import HubName, parse_hub_name
from unicorn_async.checkpoint.quantisation import refuse_announced
from unicorn_async.checkpoint.strict_json import read_object
from unicorn_async.cli.amounts import size
from unicorn_async.errors import ConfigError
from unicorn_async.hub.download import pull
from unicorn_async.models.registry import model_spec
from unicorn_async.public_text import printable

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

NAME_HELP = "ORG/NAME, or ORG/NAME:TAG for one of several GGUF files, such as ORG/NAME:Q4_K_M"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("name", metavar="NAME", help=NAME_HELP)


def run(options: argparse.Namespace) -> int:
    """Bring the model, and print where it is."""
    print(pull_model(hub_name(options.name)))
    return 0


def hub_name(text: str) -> HubName:
    """Return what a string names on the hub.

    Raises:
        ConfigError: it can't name anything there.
    """
    name = parse_hub_name(text)
    if name is None:
        raise ConfigError(f"{text}: expected {NAME_HELP}")
    return name


def pull_model(name: HubName) -> Path:
    """Bring a model's files, and tell of it at the terminal; returns where they are. Raises as `pull` does."""
    pulled = pull(name, _check, _note)
    _note(f"{name}: {size(pulled.nbytes)}, {size(pulled.new_bytes)} of it new")
    return pulled.path


def _check(directory: Path) -> None:
    """Refuse a model that can't be loaded before its weights are brought."""
    if not (directory / CONFIG_FILE).is_file():
        return  # an adapter
    config = read_object(directory / CONFIG_FILE)
    model_spec(config, CONFIG_FILE)
    refuse_announced(config, directory)


def _note(text: str) -> None:
    print(printable(text), file=sys.stderr)
