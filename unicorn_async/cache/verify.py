"""Reading an entry and what it was made of whole, to say what differs from when it was made."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from unicorn_async.cache.draft import write_synced
from unicorn_async.cache.entry import ENTRY_FILE, TENSORS_FILE
from unicorn_async.checkpoint.file_identity import blob_of
from unicorn_async.checkpoint.safetensors import read_header
from unicorn_async.errors import CacheError, CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unicorn_async.cache.entry import CacheEntry, SourceFile
    from unicorn_async.cache.folder import StoredEntry

_PIECE_BYTES = 1 << 20
_NUM_THREADS = 4


class HostChecksum(Protocol):
    """A tensor's checksum, computed on the host: the same that `ChecksumKernel` computes on the device."""

    def update(self, data: memoryview) -> None:
        """Add bytes: 16 or a multiple, unless they are the last ones."""

    def value(self) -> str:
        """Return the checksum of all bytes so far."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found of an entry: nothing in `differences` if all is as it was, as far as that is known.

    A source's bytes are those that the entry was made of where its name in the Hugging Face cache says so. Of others
    size and time are known from then, and since they were `hashed_before` that no byte has changed; of those
    `first_hashed` now not even that.
    """

    differences: tuple[str, ...]
    hashed_bytes: int
    hashed_before: tuple[str, ...] = ()
    first_hashed: tuple[str, ...] = ()


class Verifier:
    """Hashes files of entries in threads, which end soon when `verify` is interrupted."""

    def __init__(self, new_checksum: Callable[[], HostChecksum]) -> None:
        self._new_checksum = new_checksum
        self._stopped = threading.Event()

    def verify(self, stored: StoredEntry) -> Verification:
        """Read an entry and its sources whole; hashes of SHA-256 that are new are noted in the entry.

        Raises:
            CacheError: the new hashes can't be noted.
        """
        entry = stored.entry
        if entry is None:
            return Verification((stored.damage,), 0)
        with ThreadPoolExecutor(_NUM_THREADS, "unicorn-verify") as threads:
            try:
                tensors = threads.submit(self._check_tensors, stored.path / TENSORS_FILE, entry)
                sources = [threads.submit(self._check_source, source) for source in entry.sources]
                sha256, differences = tensors.result()
                found = [source.result() for source in sources]
            except BaseException:  # Ctrl-C
                self._stopped.set()
                raise
        hashes = {
            source.path: digest for source, (digest, problems) in zip(entry.sources, found, strict=True) if not problems
        }
        everything = [*differences, *(problem for _, problems in found for problem in problems)]
        _note(stored.path, entry, entry.with_hashes("" if differences else sha256, hashes))
        nbytes = entry.nbytes + sum(source.nbytes for source in entry.sources)
        unnamed = [source for source in entry.sources if source.path in hashes and not blob_of(Path(source.path))]
        return Verification(
            tuple(everything),
            nbytes,
            hashed_before=tuple(source.path for source in unnamed if source.sha256),
            first_hashed=tuple(source.path for source in unnamed if not source.sha256),
        )

    def _check_tensors(self, path: Path, entry: CacheEntry) -> tuple[str, list[str]]:
        """Return the file's SHA-256, and what is wrong with it."""
        digest, problems, position = hashlib.sha256(), [], 0
        try:
            for found in read_header(path).values():
                known = entry.tensors.get(found.name)
                if known is None or known.nbytes > found.nbytes:
                    return "", [f"{path}: tensor {found.name!r} is not the entry's"]
                checksum, end = self._new_checksum(), found.offset + known.nbytes
                for start, stop, update in ((position, found.offset, None), (found.offset, end, checksum.update)):
                    for piece in self._read(path, start, stop):
                        digest.update(piece)
                        if update is not None:
                            update(piece)
                position = end
                if checksum.value() != known.checksum:
                    problems.append(f"{path}: tensor {found.name!r} is damaged")
            for piece in self._read(path, position, entry.nbytes):
                digest.update(piece)
        except (CheckpointError, OSError) as exc:
            return "", [str(exc)]
        if entry.sha256 and digest.hexdigest() != entry.sha256:
            problems.append(f"{path}: is not the file any more that was verified before")
        return digest.hexdigest(), problems

    def _check_source(self, source: SourceFile) -> tuple[str, list[str]]:
        """Return a source's SHA-256, and what is wrong with it."""
        path = Path(source.path)
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                return "", [f"{path}: is no file"]
            blob = blob_of(path)
            if found.st_size != source.nbytes:
                return "", [f"{path}: had {source.nbytes} bytes when the entry was made, has {found.st_size}"]
            digest = hashlib.sha256()
            for piece in self._read(path, 0, found.st_size):
                digest.update(piece)
        except OSError as exc:
            return "", [f"{path}: {exc.strerror or exc}"]
        sha256, problems = digest.hexdigest(), []
        if blob and sha256 != blob:
            problems.append(f"{path}: its name in the Hugging Face cache is not its SHA-256, {sha256}")
        if source.sha256 and sha256 != source.sha256:
            problems.append(f"{path}: has another SHA-256 than when it was verified first")
        if not blob and found.st_mtime_ns != source.mtime_ns and not source.sha256:
            problems.append(f"{path}: was written to after the entry was made")
        return sha256, problems

    def _read(self, path: Path, start: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes from `start` to `end`; raises OSError, also where the file ends before."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not hold it
        try:
            while start < end:
                data = os.pread(descriptor, min(_PIECE_BYTES, end - start), start)
                if not data:
                    raise OSError(f"{path}: ends at byte {start}, expected {end}")
                if self._stopped.is_set():
                    raise OSError(f"{path}: not read to its end")
                yield memoryview(data)
                start += len(data)
        finally:
            os.close(descriptor)


def _note(folder: Path, before: CacheEntry, entry: CacheEntry) -> None:
    """Write an entry's description anew, as if it was not touched."""
    if entry == before:
        return
    path, fresh = folder / ENTRY_FILE, folder / f"{ENTRY_FILE}.{secrets.token_hex(8)}"
    try:
        found = path.stat()
        try:
            write_synced(fresh, entry.to_json())
            os.utime(fresh, ns=(found.st_atime_ns, found.st_mtime_ns))
            fresh.replace(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
    except OSError as exc:
        raise CacheError(f"{path}: the hashes can't be noted: {exc.strerror or exc}") from exc
