"""Brings a model from the Hugging Face hub into its cache on this machine, by the library huggingface_hub.

That library has the protocol, the tokens, the resuming and the progress. Which files are brought, that there is room
for them, and that what came is what the hub has, is seen to here.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from unicorn_async.checkpoint.checkpoint import INDEX_FILE, read_index
from unicorn_async.checkpoint.gguf.files import SUFFIX
from unicorn_async.checkpoint.hub import hub_cache, model_in_snapshot
from unicorn_async.checkpoint.partial_file import ModelDownload
from unicorn_async.checkpoint.safetensors import HEADER_LENGTH_BYTES, MAX_HEADER_BYTES
from unicorn_async.errors import DownloadError
from unicorn_async.hub import large_file
from unicorn_async.hub.needed import RepoFile, indexed_files, needed_files, told
from unicorn_async.hub.repository import Repository
from unicorn_async.hub.stream import DownloadStream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

    from unicorn_async.checkpoint.hub import HubName
    from unicorn_async.hub.arrivals import Arrivals
    from unicorn_async.hub.large_file import LargeFile

_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = ("1", "on", "true", "yes")
_HEADER_BYTES = 1 << 20  # of files behind the first: most headers are smaller


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
    wanted = _Wanted.find(name, listener, environ)
    hub, revision, weights = wanted.hub, wanted.revision, wanted.weights
    brought = wanted.brought
    if hub.missing(revision, weights[:1]) and large_file.can_go_on(weights[0]):
        with ExitStack() as stack:
            if (first := hub.large_file(revision, weights[0])) is not None:
                stack.enter_context(first)
                stack.enter_context(hub.errors())
                wanted.look(listener, first)
                first.settle()
        brought += weights[0].nbytes
    brought += hub.bring(revision, weights)
    hub.set_main(revision)
    return Pulled(model_in_snapshot(wanted.as_brought, hub.snapshot(revision)), wanted.nbytes, brought)


def begin_pull(
    name: HubName, listener: Listener, environ: Mapping[str, str] = os.environ, arrivals: Arrivals | None = None
) -> Pulled | DownloadStream:
    """Bring what describes a model, and begin to bring the rest in a thread; with small files alone it is a `pull`.

    It blocks until the model can be opened: until the headers of its files are there. `arrivals` are told of what
    comes, and end it. Raises as `pull`.
    """
    wanted = _Wanted.find(name, listener, environ, arrivals)
    hub, revision = wanted.hub, wanted.revision
    missing = hub.missing(revision, wanted.weights)
    small = [file for file in missing if not large_file.can_go_on(file)]
    brought = wanted.brought + hub.bring(revision, small)
    with ExitStack() as stack:
        files: list[LargeFile] = []
        for turn, file in enumerate(wanted.weights):
            if file in missing and file not in small:
                found = hub.large_file(revision, file, turn=turn, shows_bar=False)
                if found is not None:
                    files.append(stack.enter_context(found))
        if not files or not wanted.is_model:
            stack.close()
            rest = hub.bring(revision, wanted.weights)
            hub.set_main(revision)
            path = model_in_snapshot(wanted.as_brought, hub.snapshot(revision))
            return Pulled(path, wanted.nbytes, brought + rest)
        with hub.errors():
            for one in files:
                if one.file == wanted.weights[0]:
                    wanted.look(listener, one)
                else:
                    _receive_header(one)
        snapshot = hub.snapshot(revision)
        path = snapshot / wanted.weights[0].name if wanted.is_gguf else snapshot
        partial = {snapshot / one.file.name: one.content for one in files}
        stack.pop_all()
        stream = DownloadStream(hub, revision, files, ModelDownload(str(name), path, partial))
        try:
            stream.wait_for_headers()
        except BaseException:
            stream.close()
            raise
        return stream


class _Wanted(NamedTuple):
    """What a name asks for, with what describes it in the cache: `brought` are the bytes of that which were not."""

    hub: Repository
    revision: str
    name: HubName
    weights: tuple[RepoFile, ...]
    is_model: bool
    nbytes: int
    brought: int

    @classmethod
    def find(
        cls, name: HubName, listener: Listener, environ: Mapping[str, str], arrivals: Arrivals | None = None
    ) -> _Wanted:
        """Ask the hub, bring what describes the model and look at it, and see that there is room for the rest."""
        for variable in _OFFLINE_VARIABLES:
            if environ.get(variable, "").lower() in _TRUE:
                raise DownloadError(f"{name}: nothing is downloaded while {variable} is set to {environ[variable]}")
        hub = Repository(name, environ.get("HF_ENDPOINT"), hub_cache(environ), arrivals)
        revision, files = hub.files()
        needed = needed_files(name, files)
        weights, small = needed.weights, hub.missing(revision, needed.descriptions)
        brought = 0
        if weights is None:
            brought += hub.bring(revision, [file for file in needed.descriptions if file.name == INDEX_FILE])
            weights = indexed_files(name, files, read_index(hub.snapshot(revision) / INDEX_FILE).values())
        missing = hub.missing(revision, weights)
        hub.expect([*small, *missing])  # all at once: no count may say that all has come before weights do
        brought += hub.bring(revision, needed.descriptions)
        if needed.descriptions:
            listener.check_directory(hub.snapshot(revision))
        nbytes = sum(file.nbytes for file in (*needed.descriptions, *weights))
        if missing:
            listener.note(
                f"{name}: {len(missing)} of {len(weights)} weight files, {told(sum(file.nbytes for file in missing))}"
            )
        hub.check_room(missing)
        return cls(hub, revision, name, weights, not needed.is_adapter, nbytes, brought)

    @property
    def is_gguf(self) -> bool:
        """Whether the weights are in GGUF files."""
        return self.weights[0].name.endswith(SUFFIX)

    @property
    def as_brought(self) -> HubName:
        """The name that asks for what was brought, also where the cache has other files of the repository."""
        return self.name._replace(tag=Path(self.weights[0].name).name if self.is_gguf else None)

    def look(self, listener: Listener, first: LargeFile) -> None:
        """Look at what is there, and have the beginning of a GGUF model looked at as soon as it has come."""
        first.check_begins()
        if self.is_gguf:
            first.receive(large_file.HEAD_BYTES)
            with first.begun() as begun:
                listener.check_gguf(first.file.name, first.file.nbytes, begun, is_whole=len(self.weights) == 1)


def _receive_header(file: LargeFile) -> None:
    """Receive the header of a file that is brought behind others: the model can't be opened without."""
    file.receive(_HEADER_BYTES)
    if not file.file.name.endswith(SUFFIX):
        with file.begun() as begun:
            length = int.from_bytes(begun.read(HEADER_LENGTH_BYTES), "little")
        file.receive(HEADER_LENGTH_BYTES + min(length, MAX_HEADER_BYTES))
