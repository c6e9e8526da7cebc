"""Where a model lies on disk: a directory, a GGUF file, or a name in the Hugging Face cache."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.errors import ConfigError
from unicorn_async.loader.gguf.split import part_paths

if TYPE_CHECKING:
    from collections.abc import Mapping

_REPO_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def find_model(model: str | Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory or GGUF file of a model that is given by its path or by its name in the Hugging Face cache.

    For a directory without a config.json it is the only GGUF model in it.

    Raises:
        ConfigError: nothing is there, or several models; the message says what was looked for, and where. Nothing is
            ever downloaded.
        CheckpointError: the directory holds a part of a GGUF model.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return _gguf_in(path) or path
    if path.is_file():
        if path.suffix != ".gguf":
            raise ConfigError(f"{path}: is no GGUF file; give that, or the model's directory")
        return path
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
    return _gguf_in(snapshot) or snapshot


def _gguf_in(directory: Path) -> Path | None:
    """The GGUF model in a directory that is not in Hugging Face's layout; projectors of vision models are none."""
    if (directory / "config.json").exists():
        return None
    found = sorted(path for path in directory.glob("*.gguf") if not path.name.startswith("mmproj"))
    models = sorted({part_paths(path)[0] for path in found})
    if len(models) > 1:
        raise ConfigError(
            f"{directory}: has {len(models)} GGUF models; give one of {', '.join(p.name for p in models)}"
        )
    return models[0] if models else None


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
