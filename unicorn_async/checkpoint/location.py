"""Where a model lies on disk: a directory, a GGUF file, a name in the Hugging Face cache, or the bundled one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.files import SUFFIX, is_gguf, is_model_name
from unicorn_async.checkpoint.gguf.split import model_stem, part_paths
from unicorn_async.checkpoint.hub import find_in_hub, has_safetensors, model_in_snapshot, parse_hub_name, repo_folder
from unicorn_async.checkpoint.pickles import refuse_pickles
from unicorn_async.errors import ConfigError
from unicorn_async.resources import demo_model_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

DEMO = "demo"
DEMO_NAME = "unicorn-demo"  # that the bundled model shows


def find_model(model: str | Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory or GGUF file of a model that is given by its path or by its name in the Hugging Face cache.

    For a directory without safetensors files it is the only GGUF model in it, and a GGUF file needs no suffix. A name
    in the cache may say with ":TAG" which of several GGUF files is meant. The string "demo" is the bundled model; a
    directory of that name is "./demo", or a Path.

    Raises:
        ConfigError: nothing is there, or several models; the message says what was looked for, and where. Nothing is
            ever downloaded.
        CheckpointError: the directory holds a part of a GGUF model.
        UnsupportedModelError: it is a pickle by its name.
    """
    if model == DEMO:
        return demo_model_dir()
    path = Path(model).expanduser()
    if path.is_dir():
        return model_in(path)
    if path.is_file():
        if not is_gguf(path):
            refuse_pickles(path.parent, [path.name])
            raise ConfigError(f"{path}: is no GGUF file; give that, or the model's directory")
        return path
    if path.exists():
        raise ConfigError(f"{path}: is no regular file")
    name = parse_hub_name(str(model))
    if name is None:
        raise ConfigError(f"{model}: no such directory")
    snapshot = find_in_hub(name.repo, environ)
    if snapshot is None:
        raise ConfigError(
            f"{name}: not on this machine: no directory {path.absolute()}, and no snapshot in "
            f"{repo_folder(name.repo, environ)}. Nothing is downloaded unasked; bring it with: unicorn pull {name}"
        )
    return model_in_snapshot(name, snapshot)


def model_name(model: str | Path, path: Path) -> str:
    """Return the name to show for a model that was asked for as `model` and found at `path`."""
    if model == DEMO:
        return DEMO_NAME
    if not Path(model).expanduser().exists():
        return str(model)
    return model_stem(path) if path.suffix == SUFFIX else path.resolve().name


def model_in(directory: Path) -> Path:
    """Return the directory, or the GGUF model in one without safetensors files; raises as `find_model`."""
    return _gguf_in(directory) or directory


def _gguf_in(directory: Path) -> Path | None:
    """The GGUF model in a directory that has no weights in Hugging Face's layout."""
    if has_safetensors(directory):
        return None
    found = sorted(path for path in directory.glob("*.gguf") if is_model_name(path.name))
    models = sorted({part_paths(path)[0] for path in found})
    if len(models) > 1:
        raise ConfigError(
            f"{directory}: has {len(models)} GGUF models; give one of {', '.join(p.name for p in models)}"
        )
    return models[0] if models else None
