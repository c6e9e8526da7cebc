"""The Hugging Face cache of this machine: which models it has, by which names, and where.

Source: the layout that huggingface_hub documents, `models--ORG--NAME/{blobs,refs,snapshots}`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from unicorn_async.checkpoint.gguf.files import is_model_name, tag_of, tagged, whole_models
from unicorn_async.checkpoint.gguf.split import model_stem, part_paths
from unicorn_async.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REPO_PREFIX = "models--"
_REPO_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_TAG = re.compile(r"[A-Za-z0-9][\w.-]*")
_SAFETENSORS = ".safetensors"


class HubName(NamedTuple):
    """`ORG/NAME`, or `ORG/NAME:TAG` for one of several GGUF models there."""

    repo: str
    tag: str | None

    def __str__(self) -> str:
        return self.repo if self.tag is None else f"{self.repo}:{self.tag}"


def parse_hub_name(text: str) -> HubName | None:
    """Return what a string names in the Hugging Face cache, None where it can't name anything there."""
    repo, colon, tag = text.partition(":")
    if not is_repo_name(repo) or (colon and (_TAG.fullmatch(tag) is None or ".." in tag)):
        return None
    return HubName(repo, tag if colon else None)


def is_repo_name(name: str) -> bool:
    """Whether a string may name a repository."""
    return _REPO_NAME.fullmatch(name) is not None and ".." not in name


def hub_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache's folder of models, which need not exist."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := environ.get(variable):
            return Path(value).expanduser()
    if value := environ.get("HF_HOME"):
        return Path(value).expanduser() / "hub"
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def repo_folder(repo: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of a repository, which need not exist."""
    return hub_cache(environ) / (REPO_PREFIX + repo.replace("/", "--"))


def find_in_hub(repo: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the snapshot of a repository's main branch, or the only one there is; None where there is none."""
    folder = repo_folder(repo, environ)
    snapshots = folder / "snapshots"
    try:
        revision = (folder / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        found = sorted(snapshots.iterdir()) if snapshots.is_dir() else []
        return found[0] if len(found) == 1 else None
    snapshot = snapshots / revision
    return snapshot if re.fullmatch(r"\w+", revision) and snapshot.is_dir() else None


def repos_in_hub(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of all repositories of which there is a snapshot, sorted."""
    try:
        found = [entry.name for entry in os.scandir(hub_cache(environ)) if entry.name.startswith(REPO_PREFIX)]
    except OSError:
        return []
    names = (folder.removeprefix(REPO_PREFIX).replace("--", "/", 1) for folder in found)
    return sorted(name for name in names if is_repo_name(name) and find_in_hub(name, environ) is not None)


def model_in_snapshot(name: HubName, snapshot: Path) -> Path:
    """Return the model of a name in the snapshot of its repository: the snapshot itself, or a GGUF file in it.

    Raises:
        ConfigError: several files may be meant, or none; the message has the names by which to ask for each.
        CheckpointError: a part of the only GGUF model is missing.
    """
    if name.tag is None and has_safetensors(snapshot):
        return snapshot
    files = _gguf_files(snapshot)
    models = whole_models(files)
    if not models and files and name.tag is None:
        part_paths(files[0])  # says what is missing
    if name.tag is None and not models:
        return snapshot
    found = models if name.tag is None else tagged(models, name.tag)
    if len(found) == 1:
        return found[0]
    known = ", ".join(asked for asked, _ in _tagged_names(name.repo, found or models)) or "none"
    said = "no GGUF model of that tag" if not found else f"{len(found)} GGUF models"
    raise ConfigError(f"{name}: {said} in {snapshot}; give one of {known}")


def models_in_snapshot(repo: str, snapshot: Path) -> list[tuple[str, Path]]:
    """Return what a snapshot has that looks like a model, each by the name that asks for it."""
    models = whole_models(_gguf_files(snapshot))
    if has_safetensors(snapshot):
        return [(repo, snapshot), *_tagged_names(repo, models)]
    return [(repo, models[0])] if len(models) == 1 else _tagged_names(repo, models)


def _tagged_names(repo: str, models: Sequence[Path]) -> list[tuple[str, Path]]:
    """Each with the name that asks for it; files of the same type go by their own names."""
    counts = Counter(tag_of(path) for path in models)
    return [(f"{repo}:{tag if counts[tag := tag_of(path)] == 1 else model_stem(path)}", path) for path in models]


def has_safetensors(directory: Path) -> bool:
    """Whether a directory has weights in Hugging Face's layout."""
    try:
        return any(name.endswith((_SAFETENSORS, f"{_SAFETENSORS}.index.json")) for name in os.listdir(directory))
    except OSError:
        return False


def _gguf_files(snapshot: Path) -> list[Path]:
    """GGUF files of models; large repositories have a folder for each type."""
    found = (path for pattern in ("*.gguf", "*/*.gguf") for path in snapshot.glob(pattern))
    return sorted(path for path in found if is_model_name(path.name))
