"""Where a model lies on disk: a directory, a GGUF file, a name in the Hugging Face cache, or the bundled one."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.split import model_stem, part_paths
from unicorn_async.errors import ConfigError
from unicorn_async.resources import demo_model_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

DEMO = "demo"
DEMO_NAME = "unicorn-demo"  # that the bundled model shows

_HUB_PREFIX = "models--"
_REPO_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def find_model(model: str | Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory or GGUF file of a model that is given by its path or by its name in the Hugging Face cache.

    For a directory without a config.json it is the only GGUF model in it. The string "demo" is the bundled model;
    a directory of that name is "./demo", or a Path.

    Raises:
        ConfigError: nothing is there, or several models; the message says what was looked for, and where. Nothing is
            ever downloaded.
        CheckpointError: the directory holds a part of a GGUF model.
    """
    if model == DEMO:
        return demo_model_dir()
    path = Path(model).expanduser()
    if path.is_dir():
        return model_in(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ConfigError(f"{path}: is no GGUF file; give that, or the model's directory")
        return path
    if path.exists():
        raise ConfigError(f"{path}: is no regular file")
    name = str(model)
    if not is_repo_name(name):
        raise ConfigError(f"{name}: no such directory")
    found = find_in_hub(name, environ)
    if found is None:
        raise ConfigError(
            f"{name}: not on this machine: no directory {path.absolute()}, and no snapshot in {_repo(name, environ)}. "
            f"Nothing is downloaded; fetch it first, for example with: hf download {name}"
        )
    return model_in(found)


def model_name(model: str | Path, path: Path) -> str:
    """Return the name to show for a model that was asked for as `model` and found at `path`."""
    if model == DEMO:
        return DEMO_NAME
    if not Path(model).expanduser().exists():
        return str(model)
    return model_stem(path) if path.suffix == ".gguf" else path.resolve().name


def model_in(directory: Path) -> Path:
    """Return the directory, or the GGUF model in one that is not in Hugging Face's layout; raises as `find_model`."""
    return _gguf_in(directory) or directory


def is_repo_name(name: str) -> bool:
    """Whether a string may name something in the Hugging Face cache."""
    return _REPO_NAME.fullmatch(name) is not None and ".." not in name


def find_in_hub(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the snapshot of a name that `is_repo_name` in the Hugging Face cache, or None."""
    return _snapshot(_repo(name, environ))


def names_in_hub(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of all models that the Hugging Face cache has a snapshot of, sorted."""
    try:
        found = [entry.name for entry in os.scandir(hub_cache(environ)) if entry.name.startswith(_HUB_PREFIX)]
    except OSError:
        return []
    names = (folder.removeprefix(_HUB_PREFIX).replace("--", "/", 1) for folder in found)
    return sorted(name for name in names if is_repo_name(name) and find_in_hub(name, environ) is not None)


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


def _repo(name: str, environ: Mapping[str, str]) -> Path:
    return hub_cache(environ) / (_HUB_PREFIX + name.replace("/", "--"))


def _snapshot(repo: Path) -> Path | None:
    snapshots = repo / "snapshots"
    try:
        revision = (repo / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        found = sorted(snapshots.iterdir()) if snapshots.is_dir() else []
        return found[0] if len(found) == 1 else None
    snapshot = snapshots / revision
    return snapshot if re.fullmatch(r"\w+", revision) and snapshot.is_dir() else None
