"""Which model a command line means."""

from __future__ import annotations

from pathlib import Path

import unicorn_async.demo
from unicorn_async.errors import ConfigError

DEMO = "demo"
MODEL_HELP = "a directory in Hugging Face's layout, a name in its cache, or `demo` for the bundled model"


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
