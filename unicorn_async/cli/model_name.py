"""Which model a command line means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import unicorn_async.demo
from unicorn_async.cli.options import engine_config
from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from unicorn_async.config import EngineConfig

DEMO = "demo"
DEMO_MODEL_NAME = "unicorn-demo"
MODEL_HELP = "a directory in Hugging Face's layout or its name in their cache, a GGUF file, or `demo` (bundled)"


def model_location(name: str) -> str | Path:
    """Return what an engine is opened with; `demo` is the bundled model.

    Raises:
        ConfigError: the installation lacks the bundled model.
    """
    if name != DEMO:
        return name
    folder = Path(unicorn_async.demo.__file__).resolve().parent / "model"
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder}: the bundled model is not there; reinstall unicorn-async")
    return folder


def model_and_config(options: argparse.Namespace) -> tuple[str | Path, EngineConfig]:
    """Return what the command line asks an engine to be opened with; raises as `model_location` does."""
    config = engine_config(options)
    if options.model == DEMO and config.model_name is None:
        config = replace(config, model_name=DEMO_MODEL_NAME)
    return model_location(options.model), config
