"""A repository of the Hugging Face hub, and its folder in the cache on this machine."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from unicorn_async.checkpoint.hub import repo_folder
from unicorn_async.errors import ConfigError, DownloadError
from unicorn_async.hub.arrivals import Arrivals
from unicorn_async.hub.large_file import LargeFile, bytes_there, can_go_on, link_blob, sha256_of
from unicorn_async.hub.library_errors import library_errors
from unicorn_async.hub.needed import RepoFile, told

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from unicorn_async.checkpoint.hub import HubName

_TIMEOUT_S = 10.0  # for an answer of the hub that lists files


class Repository:
    """Lists a repository's files, and brings them; it blocks. What goes wrong at the hub is a DownloadError.

    `arrivals` are told of what comes, and end it; without them the library shows bars at a terminal.
    """

    def __init__(self, name: HubName, endpoint: str | None, cache: Path, arrivals: Arrivals | None = None) -> None:
        try:
            from huggingface_hub.constants import ENDPOINT  # optional, and long to import
        except ImportError as exc:
            raise ConfigError(
                f"{name}: to download a model takes the package huggingface_hub: pip install 'unicorn-async[hub]'"
            ) from exc
        _have_lines_once()
        self._name = name
        self._endpoint = (endpoint or ENDPOINT).rstrip("/")
        self._cache = cache
        self._shows_bars = arrivals is None
        self._arrivals = Arrivals() if arrivals is None else arrivals
        self._folder = cache / repo_folder(name.repo, {"HF_HUB_CACHE": os.fspath(cache)}).name

    def snapshot(self, revision: str) -> Path:
        """Return where the files of a revision lie."""
        return self._folder / "snapshots" / revision

    def files(self) -> tuple[str, tuple[RepoFile, ...]]:
        """Return the revision of the main branch, and what files it has."""
        from huggingface_hub import HfApi

        with self.errors():
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

    def expect(self, files: Sequence[RepoFile]) -> None:
        """Count files that are not in the cache among what is going to be brought."""
        self._arrivals.expect(files)

    def bring(self, revision: str, files: Sequence[RepoFile]) -> int:
        """Download the files that are not in the cache, one after the other; returns their bytes."""
        missing = self.missing(revision, files)
        for file in missing:
            self._arrivals.check()
            if can_go_on(file):
                self._fetch_large(revision, file)
            else:
                self._fetch(revision, file)
                self._arrivals.note_whole(file)
        return sum(file.nbytes for file in missing)

    def large_file(self, revision: str, file: RepoFile, *, turn: int = 0, shows_bar: bool = True) -> LargeFile | None:
        """Return a file that can be read while it comes, None where it only had to be put in its place."""
        from huggingface_hub import hf_hub_url

        with self.errors():
            if link_blob(self._folder, revision, file):
                self._arrivals.note_whole(file)
                return None
            self._arrivals.check()
            url = hf_hub_url(self._name.repo, file.name, revision=revision, endpoint=self._endpoint)
            found = LargeFile(
                url,
                file,
                self._folder,
                revision,
                turn=turn,
                shows_bar=shows_bar and self._shows_bars,
                is_stopped=self._arrivals.is_stopped,
            )
            self._arrivals.follow(found.content)
            return found

    def check_room(self, files: Sequence[RepoFile]) -> None:
        """Raise ConfigError where there is no room for files; what of them is on its way has its room."""
        with self.errors():
            needed = sum(file.nbytes - bytes_there(self._folder, file) for file in files)
            free = shutil.disk_usage(next(path for path in (self._folder, *self._folder.parents) if path.exists())).free
        if needed > free:
            raise ConfigError(
                f"{self._name}: {told(needed)} have to be downloaded, {told(free)} are free in {self._cache}"
            )

    def set_main(self, revision: str) -> None:
        """Have the name mean this revision, now that all of it is there."""
        refs = self._folder / "refs"
        with self.errors():
            refs.mkdir(parents=True, exist_ok=True)
            (refs / "main.new").write_text(revision, encoding="ascii")
            (refs / "main.new").replace(refs / "main")

    def errors(self) -> AbstractContextManager[None]:
        """Turn the library's errors, and those below it, into a `DownloadError` within a block."""
        return library_errors(self._name, self._endpoint, self._cache)

    def _fetch_large(self, revision: str, file: RepoFile) -> None:
        found = self.large_file(revision, file)
        if found is not None:
            with found, self.errors():
                found.settle()

    def _fetch(self, revision: str, file: RepoFile) -> None:
        """Have the library bring a file, and compare it with what the hub says of it; one that differs is removed."""
        from huggingface_hub import hf_hub_download

        from unicorn_async.hub.hidden_bar import HiddenBar

        with self.errors():
            path = Path(
                hf_hub_download(
                    self._name.repo,
                    file.name,
                    revision=revision,
                    cache_dir=self._cache,
                    endpoint=self._endpoint,
                    tqdm_class=None if self._shows_bars else HiddenBar,
                )
            )
            nbytes, digest = path.stat().st_size, None if file.sha256 is None else sha256_of(path)
            if (nbytes, digest) == (file.nbytes, file.sha256):
                return
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            expected, got = f"{file.nbytes} bytes, sha256 {file.sha256}", f"{nbytes} bytes, sha256 {digest}"
            raise DownloadError(f"{file.name}: expected {expected}, got {got}; it was removed, pull it again")


def _have_lines_once() -> None:
    """Leave what the library logs to the handlers of this process, where it has any: its own writes each line again."""
    import huggingface_hub.utils.logging  # which puts its handler there

    library = logging.getLogger(huggingface_hub.__name__)
    if library.propagate and logging.getLogger().handlers:
        library.handlers = [one for one in library.handlers if type(one) is not logging.StreamHandler]
