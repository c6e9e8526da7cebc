"""The user's folders for what can be made anew."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unicorn_async.cache.folder import CacheFolder
    from unicorn_async.tokenizer.kept_folder import KeptFolder
    from unicorn_async.tune.folder import TuningFolder


def cache_directory() -> Path:
    """Return the user's folder for what can be made anew.

    A relative XDG_CACHE_HOME is invalid, and ignored (XDG Base Directory Specification 0.8): the folder would be
    another one wherever a command is started.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "unicorn_async"


def weight_cache_directory() -> Path:
    """Return where the user's cache of device-ready weights lies."""
    return cache_directory() / "weights"


def weight_cache_folder() -> CacheFolder:
    """Return the user's cache of device-ready weights."""
    from unicorn_async.cache.folder import CacheFolder  # who opens a device alone has no use for it

    return CacheFolder(weight_cache_directory())


def kept_tokenizers() -> KeptFolder:
    """Return the user's folder of large tokenizers, in a form that is there at once."""
    from unicorn_async.tokenizer.kept_folder import KeptFolder

    return KeptFolder(cache_directory() / "tokenizers")


def step_times_directory() -> Path:
    """Return where times of steps lie that were measured on a machine with an NPU."""
    return cache_directory() / "step-times"


def kept_blocks_directory() -> Path:
    """Return where blocks of KV caches lie, of those who asked for it."""
    return cache_directory() / "kv"


def tuning_folder() -> TuningFolder:
    """Return the user's tables of measured choices."""
    from unicorn_async.tune.folder import TuningFolder

    return TuningFolder(cache_directory() / "tuning")
