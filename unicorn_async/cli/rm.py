"""`unicorn rm NAME`: models out of the Hugging Face cache of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unicorn_async.cli.amounts import size
from unicorn_async.cli.pull import NAME_HELP, hub_name
from unicorn_async.hub.cached import remove

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("names", metavar="NAME", nargs="+", help=NAME_HELP)


def run(options: argparse.Namespace) -> int:
    """Remove them, one after the other."""
    for name in [hub_name(text) for text in options.names]:
        print(f"removed {name}, {size(remove(name))}")
    return 0
