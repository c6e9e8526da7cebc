"""`unicorn pull NAME`: a model from the Hugging Face hub into its cache on this machine."""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.checkpoint import CONFIG_FILE
from unicorn_async.checkpoint.gguf.config import file_traits, gguf_config, json_config
from unicorn_async.checkpoint.gguf.header import parse_header
from unicorn_async.checkpoint.hub import HubName, parse_hub_name
from unicorn_async.checkpoint.quantisation import refuse_announced
from unicorn_async.checkpoint.strict_json import read_object
from unicorn_async.cli.amounts import size
from unicorn_async.errors import CheckpointError, ConfigError, UnsupportedModelError
from unicorn_async.hub.download import pull
from unicorn_async.hub.pending import PendingPull
from unicorn_async.models.registry import model_spec
from unicorn_async.public_text import printable
from unicorn_async.weights.wanted import file_types

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

_log = logging.getLogger(__name__)
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
    teller = Teller()
    pulled = pull(name, teller)
    teller.note(f"{name}: {size(pulled.nbytes)}, {size(pulled.new_bytes)} of it new")
    return pulled.path


def begin_pull_model(text: str, name: HubName) -> PendingPull:
    """Begin to bring what a `text` on the command line names on the hub; what is told of it goes to the log."""
    return PendingPull(text, name, Teller(partial(_log.info, "%s")))


class Teller:
    """The listener of a download: refuses models that can't be loaded."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        """`tell` takes lines, which are printed where progress is shown without it."""
        self._tell = tell

    def note(self, text: str) -> None:
        """Tell it."""
        if self._tell is not None:
            self._tell(text)
        else:
            print(printable(text), file=sys.stderr)

    def check_directory(self, directory: Path) -> None:
        """Look at config.json; adapters have none."""
        if (directory / CONFIG_FILE).is_file():
            config = read_object(directory / CONFIG_FILE)
            model_spec(config, CONFIG_FILE)
            refuse_announced(config, directory)

    def check_gguf(self, name: str, nbytes: int, begun: BinaryIO, *, is_whole: bool) -> None:
        """Look at the header, as far as it is there: at the architecture, its options and the types of tensors.

        A part of a model has not all of its tensors. What is damaged is for who loads it.
        """
        try:
            header = parse_header(begun, nbytes, source=name)
            config = gguf_config(header.metadata, header.tensors, name)
            if is_whole:
                model_spec(json_config(config, {}), name, file_traits(config, {}))
        except UnsupportedModelError:
            raise
        except CheckpointError:
            return
        for tensor in header.tensors.values():
            if tensor.dtype not in file_types():
                known = ", ".join(file_types())
                raise UnsupportedModelError(
                    f"{name}: tensor {tensor.name!r}: dtype {tensor.dtype} is not supported, only {known}"
                )
