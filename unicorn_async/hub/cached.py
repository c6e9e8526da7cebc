"""What the Hugging Face cache of this machine holds of models, told and removed."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.checkpoint import CONFIG_FILE, weight_files
from unicorn_async.checkpoint.gguf.files import SUFFIX, tag_of
from unicorn_async.checkpoint.gguf.split import part_paths
from unicorn_async.checkpoint.hub import (
    REPO_PREFIX,
    HubName,
    find_in_hub,
    hub_cache,
    model_in_snapshot,
    models_in_snapshot,
    repo_folder,
    repos_in_hub,
)
from unicorn_async.errors import CheckpointError, ConfigError
from unicorn_async.lora_spec import ADAPTER_CONFIG_FILE, ADAPTER_TENSORS_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class CachedModel:
    """Something in the cache: by which name, what it is, its bytes on disk, and whether it can be loaded.

    `kind` is "safetensors", "adapter", a GGUF file's type, or "" for a repository without a model that is whole.
    """

    name: str
    kind: str
    nbytes: int
    is_whole: bool


def cached_models(environ: Mapping[str, str] = os.environ) -> list[CachedModel]:
    """Return what the cache holds, by name; it blocks on the disk."""
    found: list[CachedModel] = []
    whole = {repo: snapshot for repo in repos_in_hub(environ) if (snapshot := find_in_hub(repo, environ)) is not None}
    for repo in sorted({*whole, *_repos(environ)}):
        models = models_in_snapshot(repo, whole[repo]) if repo in whole else []
        told = [_described(name, path, whole[repo]) for name, path in models]
        found += told
        nbytes = _bytes_below(repo_folder(repo, environ))
        if not told:
            found.append(CachedModel(repo, "", nbytes, is_whole=False))
    return found


def is_cached(name: HubName, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether what a name asks for is in the cache, with all its files; a name that may mean several things is."""
    snapshot = find_in_hub(name.repo, environ)
    if snapshot is None:
        return False
    models = models_in_snapshot(name.repo, snapshot)
    try:
        path = model_in_snapshot(name, snapshot)
    except ConfigError:
        return name.tag is None and len(models) > 1
    except CheckpointError:
        return False
    return path.suffix == SUFFIX or _is_whole(path)


def remove(name: HubName, environ: Mapping[str, str] = os.environ) -> int:
    """Remove a repository, or with a tag one GGUF model of it, from the cache; returns the bytes that went.

    Raises:
        ConfigError: the cache has no such model, it is being brought, or a file can't be removed.
    """
    folder = repo_folder(name.repo, environ)
    if not folder.is_dir():
        raise ConfigError(f"{name}: not in {hub_cache(environ)}")
    before = _bytes_below(folder)
    try:
        if name.tag is None:
            with ExitStack() as stack:
                _lock(name, folder, stack)
                shutil.rmtree(folder)
                with suppress(FileNotFoundError):
                    shutil.rmtree(folder.parent / ".locks" / folder.name)
        else:
            _remove_gguf(name, folder, environ)
    except OSError as exc:
        raise ConfigError(f"{exc.filename}: {exc.strerror}") from exc
    return before - _bytes_below(folder)


def _lock(name: HubName, folder: Path, stack: ExitStack) -> None:
    """Have all that is there of files that come, up to the stack's end; raises ConfigError where another brings one."""
    from unicorn_async.hub.large_file import PARTIAL_SUFFIX

    for path in folder.glob(f"blobs/*{PARTIAL_SUFFIX}"):
        try:
            fcntl.flock(stack.enter_context(path.open("rb")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise ConfigError(f"{name}: it is being brought, by another process: end that first") from exc


def _remove_gguf(name: HubName, folder: Path, environ: Mapping[str, str]) -> None:
    snapshot = find_in_hub(name.repo, environ)
    if snapshot is None:
        raise ConfigError(f"{name}: not in {hub_cache(environ)}")
    for path in part_paths(model_in_snapshot(name, snapshot)):
        blob = path.resolve()
        path.unlink()
        others = (link.resolve() for link in folder.glob("snapshots/**/*") if link.is_symlink())
        if blob.is_relative_to(folder.resolve() / "blobs") and blob not in others:
            blob.unlink(missing_ok=True)


def _described(name: str, path: Path, snapshot: Path) -> CachedModel:
    if path.suffix == SUFFIX:
        return CachedModel(name, tag_of(path), sum(part.stat().st_size for part in part_paths(path)), is_whole=True)
    is_whole = _is_whole(path)
    is_adapter = not is_whole and (path / ADAPTER_CONFIG_FILE).is_file() and (path / ADAPTER_TENSORS_FILE).is_file()
    files = [file for file in snapshot.glob("**/*") if file.is_file() and file.suffix != SUFFIX]
    nbytes = sum(file.stat().st_size for file in files)
    return CachedModel(name, "adapter" if is_adapter else "safetensors", nbytes, is_whole or is_adapter)


def _is_whole(directory: Path) -> bool:
    """Whether a model in Hugging Face's layout has all its files."""
    try:
        weight_files(directory)
    except CheckpointError:
        return False
    return (directory / CONFIG_FILE).is_file()


def _repos(environ: Mapping[str, str]) -> list[str]:
    """Repositories that have a folder, whatever is in it."""
    try:
        names = os.listdir(hub_cache(environ))
    except OSError:
        return []
    return [name.removeprefix(REPO_PREFIX).replace("--", "/", 1) for name in names if name.startswith(REPO_PREFIX)]


def _bytes_below(folder: Path) -> int:
    """Bytes of files, each counted once: what is a link is not."""
    return sum(path.stat().st_size for path in folder.glob("**/*") if path.is_file() and not path.is_symlink())
