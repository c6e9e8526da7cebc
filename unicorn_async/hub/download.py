"""Brings a model from the Hugging Face hub into its cache on this machine, by the library huggingface_hub.

That library has the protocol, the tokens, the resuming and the progress. Which files are brought, that there is room
for them, and that what came is what the hub has, is seen to here.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from unicorn_async.checkpoint.checkpoint import INDEX_FILE, read_index
from unicorn_async.checkpoint.gguf.files import SUFFIX
from unicorn_async.checkpoint.hub import hub_cache, model_in_snapshot, repo_folder
from unicorn_async.errors import ConfigError, DownloadError
from unicorn_async.hub.large_file import bytes_there, can_go_on, fetch, sha256_of
from unicorn_async.hub.library_errors import library_errors
from unicorn_async.hub.needed import RepoFile, indexed_files, needed_files, told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import BinaryIO

    from unicorn_async.checkpoint.hub import HubName

_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = ("1", "on", "true", "yes")
_TIMEOUT_S = 10.0  # for an answer of the hub that lists files


class Pulled(NamedTuple):
    """A model that is in the cache now: where, its size, and how much of that was not there before."""

    path: Path
    nbytes: int
    new_bytes: int


class Listener(Protocol):
    """Who is told of a download, and looks at a model before most of it has come: what it raises ends the download."""

    def note(self, text: str) -> None:
        """Take a line about what comes."""

    def check_directory(self, directory: Path) -> None:
        """Look at what describes a safetensors model, or an adapter."""

    def check_gguf(self, name: str, nbytes: int, begun: BinaryIO, *, is_whole: bool) -> None:
        """Look at the beginning of a GGUF file of so many bytes, which is the whole model or its first part."""


def pull(name: HubName, listener: Listener, environ: Mapping[str, str] = os.environ) -> Pulled:
    """Bring a model's files, as far as they are not in the cache; it blocks until all are there.

    What was brought stays when it fails, and a second call goes on from there.

    Raises:
        ConfigError, UnsupportedModelError: there is no such model, it is of a kind that is not supported, there is no
            room for it, or huggingface_hub is not installed.
        DownloadError: the hub can't be reached, refuses, or sent something else than it has.
    """
    for variable in _OFFLINE_VARIABLES:
        if environ.get(variable, "").lower() in _TRUE:
            raise DownloadError(f"{name}: nothing is downloaded while {variable} is set to {environ[variable]}")
    hub = _Hub(name, environ.get("HF_ENDPOINT"), hub_cache(environ))
    revision, files = hub.files()
    needed = needed_files(name, files)
    brought = hub.bring(revision, needed.descriptions)
    if needed.descriptions:
        listener.check_directory(hub.snapshot(revision))
    weights = needed.weights
    if weights is None:
        weights = indexed_files(name, files, read_index(hub.snapshot(revision) / INDEX_FILE).values())
    nbytes = sum(file.nbytes for file in (*needed.descriptions, *weights))
    missing = hub.missing(revision, weights)
    if missing:
        listener.note(
            f"{name}: {len(missing)} of {len(weights)} weight files, {told(sum(file.nbytes for file in missing))}"
        )
    hub.check_room(missing)
    brought += hub.bring(revision, weights, listener)
    hub.set_main(revision)
    return Pulled(model_in_snapshot(_as_brought(name, weights), hub.snapshot(revision)), nbytes, brought)


def _as_brought(name: HubName, weights: Sequence[RepoFile]) -> HubName:
    """The name that asks for what was brought, also where the cache has other files of the repository."""
    first = weights[0].name
    return name._replace(tag=Path(first).name) if first.endswith(SUFFIX) else name._replace(tag=None)


def _look(listener: Listener, file: RepoFile, is_whole: bool, begun: BinaryIO) -> None:
    listener.check_gguf(file.name, file.nbytes, begun, is_whole=is_whole)


class _Hub:
    """A repository on the hub, and its folder in the cache."""

    def __init__(self, name: HubName, endpoint: str | None, cache: Path) -> None:
        try:
            from huggingface_hub.constants import ENDPOINT  # optional, and long to import
        except ImportError as exc:
            raise ConfigError(
                f"{name}: to download a model takes the package huggingface_hub: pip install 'unicorn-async[hub]'"
            ) from exc
        self._name = name
        self._endpoint = (endpoint or ENDPOINT).rstrip("/")
        self._cache = cache
        self._folder = cache / repo_folder(name.repo, {"HF_HUB_CACHE": os.fspath(cache)}).name

    def snapshot(self, revision: str) -> Path:
        """Return where the files of a revision lie."""
        return self._folder / "snapshots" / revision

    def files(self) -> tuple[str, tuple[RepoFile, ...]]:
        """Return the revision of the main branch, and what files it has."""
        from huggingface_hub import HfApi

        with self._library():
            api = HfApi(endpoint=self._endpoint)
            info = api.model_info(self._name.repo, files_metadata=True, timeout=_TIMEOUT_S)
        if not info.sha or not info.sha.isalnum():
            raise DownloadError(f"{self._name}: the hub names no revision, but {str(info.sha)[:100]!r}")
        found = []
        for file in info.siblings or ():
            if file.size is not None and file.size >= 0:
                sha256 = file.lfs.sha256 if file.lfs is not None else None
                found.append(RepoFile(file.rfilename, file.size, sha256))
        return info.sha, tuple(found)

    def missing(self, revision: str, files: Sequence[RepoFile]) -> list[RepoFile]:
        """Return the files that are not in the cache."""
        return [file for file in files if not (self.snapshot(revision) / file.name).exists()]

    def bring(self, revision: str, files: Sequence[RepoFile], listener: Listener | None = None) -> int:
        """Download the files that are not in the cache, one after the other; returns their bytes.

        The `listener` looks at a GGUF model's first file.
        """
        missing = self.missing(revision, files)
        for file in missing:
            if can_go_on(file):
                look = None
                if listener is not None and file == files[0] and file.name.endswith(SUFFIX):
                    look = partial(_look, listener, file, len(files) == 1)
                self._fetch_large(revision, file, look)
            else:
                self._fetch(revision, file)
        return sum(file.nbytes for file in missing)

    def check_room(self, files: Sequence[RepoFile]) -> None:
        """Raise ConfigError where there is no room for files; what of them is on its way has its room."""
        needed = sum(file.nbytes - bytes_there(self._folder, file) for file in files)
        free = shutil.disk_usage(next(path for path in (self._folder, *self._folder.parents) if path.exists())).free
        if needed > free:
            raise ConfigError(
                f"{self._name}: {told(needed)} have to be downloaded, {told(free)} are free in {self._cache}"
            )

    def set_main(self, revision: str) -> None:
        """Have the name mean this revision, now that all of it is there."""
        refs = self._folder / "refs"
        with self._library():
            refs.mkdir(parents=True, exist_ok=True)
            (refs / "main.new").write_text(revision, encoding="ascii")
            (refs / "main.new").replace(refs / "main")

    def _library(self) -> AbstractContextManager[None]:
        return library_errors(self._name, self._endpoint, self._cache)

    def _fetch_large(self, revision: str, file: RepoFile, look: Callable[[BinaryIO], None] | None) -> None:
        from huggingface_hub import hf_hub_url

        with self._library():
            url = hf_hub_url(self._name.repo, file.name, revision=revision, endpoint=self._endpoint)
            fetch(url, file, self._folder, revision, look)

    def _fetch(self, revision: str, file: RepoFile) -> None:
        """Have the library bring a file, and compare it with what the hub says of it; one that differs is removed."""
        from huggingface_hub import hf_hub_download

        with self._library():
            path = Path(
                hf_hub_download(
                    self._name.repo, file.name, revision=revision, cache_dir=self._cache, endpoint=self._endpoint
                )
            )
            nbytes, digest = path.stat().st_size, None if file.sha256 is None else sha256_of(path)
            if (nbytes, digest) == (file.nbytes, file.sha256):
                return
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            expected, got = f"{file.nbytes} bytes, sha256 {file.sha256}", f"{nbytes} bytes, sha256 {digest}"
            raise DownloadError(f"{file.name}: expected {expected}, got {got}; it was removed, pull it again")
