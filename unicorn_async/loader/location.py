"""Where a model lies on disk: a directory, or a name in the Hugging Face cache."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

_REPO_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def find_model_directory(model: str | Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of a model that is given by its path or by its name in the Hugging Face cache.

    Raises:
        ConfigError: nothing is there; the message says where it was looked for. Nothing is ever downloaded.
        UnsupportedModelError: the path is a file of a kind that is not supported.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix == ".gguf":
            raise UnsupportedModelError(f"{path}: GGUF files are not supported; give a Hugging Face directory")
        raise ConfigError(f"{path}: is a file; give the model's directory")
    name = str(model)
    if not _REPO_NAME.fullmatch(name) or ".." in name:
        raise ConfigError(f"{name}: no such directory")
    cache = hub_cache(environ)
    repo = cache / ("models--" + name.replace("/", "--"))
    snapshot = _snapshot(repo)
    if snapshot is None:
        raise ConfigError(
            f"{name}: not on this machine: no directory {path.absolute()}, and no snapshot in {repo}. "
            f"Nothing is downloaded; fetch it first, for example with: hf download {name}"
        )
    return snapshot


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the Hugging Face cache's folder of models, which need not exist."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := environ.get(variable):
            return Path(value).expanduser()
    if value := environ.get("HF_HOME"):
        return Path(value).expanduser() / "hub"
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def _snapshot(repo: Path) -> Path | None:
    snapshots = repo / "snapshots"
    try:
        revision = (repo / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        found = sorted(snapshots.iterdir()) if snapshots.is_dir() else []
        return found[0] if len(found) == 1 else None
    snapshot = snapshots / revision
    return snapshot if re.fullmatch(r"\w+", revision) and snapshot.is_dir() else None
