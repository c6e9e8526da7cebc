"""The models that a stranger may name: never a path, and nothing outside of the folders that the operator gave."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.gguf.files import is_model_name, whole_models
from unicorn_async.checkpoint.gguf.split import part_paths
from unicorn_async.checkpoint.hub import (
    find_in_hub,
    hub_cache,
    is_repo_name,
    model_in_snapshot,
    models_in_snapshot,
    parse_hub_name,
    repos_in_hub,
)
from unicorn_async.checkpoint.location import DEMO, DEMO_NAME, find_model, model_in, model_name
from unicorn_async.errors import CheckpointError, ConfigError, ModelNotFoundError
from unicorn_async.lora_spec import ADAPTER_CONFIG_FILE
from unicorn_async.resources import demo_model_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAX_NAME = 512  # characters
MAX_LISTED = 512  # models in a listing
_MAX_SCANNED = 20_000  # files and folders that a listing looks at, in all
_MAX_DEPTH = 4  # of folders below one that was given
_CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model that may be loaded: the name that it is served under, and what to open it by."""

    name: str
    location: str | Path


class ModelCatalog:
    """Names of models: the one given at the start, the bundled one, those below folders, the Hugging Face cache's.

    A name below a folder is a path relative to it, with slashes. Neither `..` nor a link leads out of the folder.
    """

    def __init__(
        self, given: CatalogEntry | None = None, folders: Sequence[Path] = (), environ: Mapping[str, str] = os.environ
    ) -> None:
        """`given` may lie anywhere.

        Raises:
            ConfigError: one of the folders is none.
        """
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(f"{folder}: no such directory")
        self.given = given
        self._folders = tuple(folder.resolve() for folder in folders)
        self._environ = environ

    def entries(self) -> list[CatalogEntry]:
        """Return what may be loaded, as far as one can tell by file names, at most `MAX_LISTED`; blocks on the disk."""
        found: dict[str, CatalogEntry] = {}
        seen: set[Path] = set()
        for entry in self._candidates():
            if len(found) >= MAX_LISTED:
                break
            location = _where(entry)
            if entry.name not in found and location not in seen:
                found[entry.name] = entry
                seen.add(location)
        return list(found.values())

    def find(self, name: str) -> CatalogEntry:
        """Return the model of a name; blocks on the disk.

        Raises:
            ModelNotFoundError: there is none; the message tells nothing of the disk.
            ConfigError, CheckpointError: the name is a folder of several GGUF models, or of a part of one.
        """
        if self.given is not None and name == self.given.name:
            return self.given
        if name in (DEMO, DEMO_NAME):
            return CatalogEntry(DEMO_NAME, DEMO)
        for folder in self._folders:
            entry = _model_below(folder, name)
            if entry is not None:
                return entry
        found = parse_hub_name(name) if len(name) <= MAX_NAME else None
        snapshot = None if found is None else find_in_hub(found.repo, self._environ)
        if found is None or snapshot is None:
            raise ModelNotFoundError(f"model {name[:200]!r} is not among those that may be loaded here")
        return CatalogEntry(name, model_in_snapshot(found, snapshot))

    def find_adapter(self, name: str) -> Path:
        """Return the directory of a LoRA adapter below a folder, or in the Hugging Face cache; blocks on the disk.

        Raises:
            ConfigError: there is none; the message tells nothing of the disk.
        """
        places = [_below(folder, name) for folder in self._folders]
        if len(name) <= MAX_NAME and is_repo_name(name):
            places.append(find_in_hub(name, self._environ))
        for path in places:
            if path is not None and (path / ADAPTER_CONFIG_FILE).is_file():
                return path
        raise ConfigError(f"adapter {name[:200]!r} is not among those that may be loaded here")

    def adapters(self) -> list[str]:
        """Return the names that `find_adapter` finds below folders and in the cache; blocks on the disk."""
        found = dict.fromkeys(name for folder in self._folders for name in _adapters_below(folder))
        for name in repos_in_hub(self._environ):
            snapshot = find_in_hub(name, self._environ)
            if snapshot is not None and (snapshot / ADAPTER_CONFIG_FILE).is_file():
                found[name] = None
        return list(islice(found, MAX_LISTED))

    def places(self) -> list[tuple[Path, str]]:
        """Return where models lie, and what to say to clients in place of each path; "" for nothing."""
        found = [(demo_model_dir(), DEMO_NAME), (hub_cache(self._environ), "")]
        found += [(folder, "") for folder in self._folders]
        if self.given is not None:
            with suppress(ConfigError, CheckpointError):  # a model that is gone by now has no place
                path = find_model(self.given.location, self._environ)
                found.append((path, self.given.name) if path.is_dir() else (path.parent, ""))
        return found

    def _candidates(self) -> Iterator[CatalogEntry]:
        if self.given is not None:
            yield self.given
        yield CatalogEntry(DEMO_NAME, DEMO)
        for folder in self._folders:
            yield from _listed(folder)
        for repo in repos_in_hub(self._environ):
            snapshot = find_in_hub(repo, self._environ)
            for name, path in [] if snapshot is None else models_in_snapshot(repo, snapshot):
                if path != snapshot or _is_model(os.listdir(path)):
                    yield CatalogEntry(name, path)


def given_entry(model: str | Path, name: str | None = None) -> CatalogEntry:
    """Return the entry of a model as a command line gives it, to be served under `name` or else its own.

    Raises:
        ConfigError, CheckpointError: there is no such model.
    """
    return CatalogEntry(name or model_name(model, find_model(model)), model)


def _where(entry: CatalogEntry) -> Path:
    try:
        return find_model(entry.location).resolve()
    except (ConfigError, CheckpointError):
        return Path(entry.location)


def _below(folder: Path, name: str) -> Path | None:
    """The file or directory of a relative name, its links followed, or None where there is none inside the folder."""
    parts = name.split("/")
    if len(name) > MAX_NAME or "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
        return None
    try:
        path = folder.joinpath(*parts).resolve(strict=True)
    except (OSError, RuntimeError, UnicodeEncodeError):
        return None
    return path if path.is_relative_to(folder) and path != folder else None


def _model_below(folder: Path, name: str) -> CatalogEntry | None:
    """The entry of a name; a directory of one GGUF model is that model, a part of a model the whole."""
    path = _below(folder, name)
    if path is None or not (path.is_dir() or path.suffix == ".gguf"):
        return None
    if path.is_dir():
        location = model_in(path)
        if location != path:
            name = f"{name}/{location.name}"
        files = location.iterdir() if location.is_dir() else iter(part_paths(location))
    else:
        parts = part_paths(path)
        location, files = parts[0], iter(parts)
        name = name.rpartition("/")[0] + "/" * ("/" in name) + location.name
    for file in files:
        if _leads_out(file, folder):
            raise ConfigError(f"{name}: {file.name} is a link that leads out of the folder of models")
    return CatalogEntry(name, location)


def _leads_out(file: Path, folder: Path) -> bool:
    """Whether a file is a link to what is not inside the folder; one that leads nowhere is for who opens it."""
    try:
        return file.is_symlink() and not file.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # a loop
        return False


def _is_found(folder: Path, name: str) -> bool:
    """Whether who asks for a name gets a model: not where a link leads out of the folder, or nowhere."""
    try:
        return _model_below(folder, name) is not None
    except (ConfigError, CheckpointError, OSError):
        return False


def _listed(folder: Path) -> Iterator[CatalogEntry]:
    """What looks like a model below a folder, and would be found there."""
    for directory, names in _directories(folder):
        is_model = directory != folder and _is_model(names)
        for path in [directory] if is_model else _gguf_models(directory, names):
            name = path.relative_to(folder).as_posix()
            if _is_found(folder, name):
                yield CatalogEntry(name, path)


def _adapters_below(folder: Path) -> Iterator[str]:
    """The names of what looks like an adapter below a folder, and would be found there."""
    for directory, names in _directories(folder):
        if ADAPTER_CONFIG_FILE in names and directory != folder:
            name = directory.relative_to(folder).as_posix()
            found = _below(folder, name)
            if found is not None and (found / ADAPTER_CONFIG_FILE).is_file():
                yield name


def _directories(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """A folder and what is below it with the names inside, sorted; nothing below a model's directory.

    Links to directories are not followed.
    """
    waiting = [(folder, 0)]
    num_scanned = 0
    while waiting:
        directory, depth = waiting.pop()
        try:
            inside = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError:
            continue
        num_scanned += len(inside)
        if num_scanned > _MAX_SCANNED:
            return
        names = [entry.name for entry in inside]
        yield directory, names
        if depth < _MAX_DEPTH and (directory == folder or not _is_model(names)):
            below = [entry for entry in inside if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."]
            waiting += [(Path(entry.path), depth + 1) for entry in reversed(below)]


def _is_model(names: Sequence[str]) -> bool:
    """Whether files of these names make a model in Hugging Face's layout; an adapter is none."""
    return _CONFIG in names and ADAPTER_CONFIG_FILE not in names and any(n.endswith(".safetensors") for n in names)


def _gguf_models(directory: Path, names: Sequence[str]) -> list[Path]:
    return whole_models(directory / name for name in names if is_model_name(name))
